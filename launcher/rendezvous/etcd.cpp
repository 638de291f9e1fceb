#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "launcher/coordinator/admission.h"
#include "launcher/error.h"
#include "launcher/etcd/etcd_host.h"
#include "launcher/net/address.h"
#include "launcher/overloaded.h"
#include "launcher/process/background_call.h"
#include "launcher/rendezvous/guests.h"
#include "launcher/rendezvous/host_name.h"
#include "launcher/rendezvous/link.h"
#include "launcher/rendezvous/meeting_place.h"
#include "launcher/rendezvous/name_answer.h"
#include "launcher/rendezvous/port.h"

namespace launcher {
namespace {

constexpr const char* kHostTimer = "etcd rendezvous";
constexpr const char* kCallTimer = "call of etcd";
constexpr const char* kDoorTimer = "doors of a former coordinator";
// For strangers, and for hosts that come again before they are missed.
constexpr size_t kSpareGuests = 64;

EtcdHost::Time time_now() {
  return std::chrono::steady_clock::now();
}

/// The sockets, the clock and the calls of an EtcdHost.
class EtcdRendezvous : public Rendezvous {
 public:
  EtcdRendezvous(EventLoop& loop,
                 const Meeting& meeting,
                 std::string host,
                 Handler handler)
      : loop_(loop),
        meeting_(meeting),
        settings_(meeting.etcd.value()),
        name_(std::move(host)),
        handler_(std::move(handler)) {}
  ~EtcdRendezvous() override {
    loop_.disarm_timer(kHostTimer);
    loop_.disarm_timer(kCallTimer);
    loop_.disarm_timer(kDoorTimer);
  }

  void join(const HostOffer& offer) override;
  void report(const HostOutcome& outcome) override {
    perform(host_->report(outcome, time_now()));
  }
  void leave() override {
    if (host_) {
      perform(host_->leave(time_now()));
    }
  }
  bool is_over() const override { return !host_ || host_->is_over(); }

 private:
  void perform(const EtcdHost::Actions& actions);
  void act(EtcdCall call);
  void act(const EtcdHost::Connect& connect);
  void act(const EtcdHost::HangUp&);
  void act(const EtcdHost::Tell& tell);
  void act(const EtcdHost::CloseDoors&);
  void act(const Coordinator::Send& send);
  void act(const Coordinator::Drop& drop);
  void act(const RendezvousAnswer& answer) { handler_(answer); }

  void open_doors();
  void start_call(const EtcdCall& call);
  void take(const std::optional<std::string>& text);
  void set_timer();
  void on_time();

  EventLoop& loop_;
  Meeting meeting_;
  EtcdSettings settings_;
  std::string name_;
  Handler handler_;
  StorePort port_{0};

  std::optional<EtcdHost> host_;
  std::optional<BackgroundCall> call_;
  EtcdAnswer answer_;  // the last one
  CoordinatorPlace own_place_;
  int openings_ = 0;
  std::unique_ptr<Guests> guests_;
  std::unique_ptr<Guests> former_guests_;  // may be at work just now
  std::optional<Link> link_;
  Endpoint link_end_;
};

void EtcdRendezvous::join(const HostOffer& offer) {
  try {
    const int store_port = port_.reserve();
    if (!host_) {
      const Hello hello = hello_of(meeting_, name_, offer);
      own_place_ = {.id = hello.id, .host = name_};
      host_.emplace(
          EtcdHost::Options{.meeting = meeting_,
                            .hello = hello,
                            .etcd = "etcd at " + text_of(settings_.endpoint)});
    }
    perform(host_->join(store_port, time_now()));
  } catch (const LaunchError& error) {
    handler_(RendezvousLost{error.what()});
  }
}

void EtcdRendezvous::perform(const EtcdHost::Actions& actions) {
  for (const EtcdHost::Action& action : actions) {
    std::visit([this](const auto& known) { act(known); }, action);
  }
  set_timer();
}

void EtcdRendezvous::act(EtcdCall call) {
  try {
    if (call.kind == EtcdCall::Kind::campaign) {
      open_doors();
      call.coordinator = encode(own_place_);
    }
    start_call(call);
  } catch (const LaunchError& error) {
    handler_(RendezvousLost{error.what()});
  } catch (const std::system_error& error) {
    handler_(RendezvousLost{std::string(error.what()) + "; check ulimit -a"});
  }
}

/// Where the others find this host is where it has reached etcd from, or, on
/// etcd's own host, as that one is called.
void EtcdRendezvous::open_doors() {
  if (guests_) {
    return;
  }
  const std::string& seen = answer_.local_address;
  const auto found = addresses_of(seen, 0);
  const bool is_hidden = found.empty() || is_loopback(found.front());
  std::string host = meeting_.local_address;
  if (host.empty()) {
    host = is_hidden ? settings_.endpoint.host : seen;
  }
  std::vector<SocketAddress> places;
  if (is_address(host)) {
    places = addresses_of(host, 0);
  }
  if (places.empty() || !is_own(places.front())) {
    places = addresses_of("::", 0);
    const auto without_ip6 = addresses_of("0.0.0.0", 0);
    places.insert(places.end(), without_ip6.begin(), without_ip6.end());
  }
  std::vector<Fd> listeners;
  for (const SocketAddress& place : places) {
    if (Fd listener = listeners.empty() ? listen_at(place) : Fd()) {
      own_place_.endpoint = {host, port_of(own_end(listener))};
      listeners.push_back(std::move(listener));
    }
  }
  if (listeners.empty()) {
    throw LaunchError(kExitFailure,
                      "cannot listen for the other hosts at " + host +
                          "; check --local-addr and the network");
  }
  host_->set_address(host);
  const int opening = ++openings_;
  guests_ = std::make_unique<Guests>(
      loop_,
      std::move(listeners),
      2 * static_cast<size_t>(meeting_.terms.most_hosts) + kSpareGuests,
      Guests::Handlers{
          .on_message =
              [this, opening](Guests::Id id, const Message& message) {
                if (guests_ && opening == openings_) {
                  perform(host_->on_guest_message(id, message, time_now()));
                }
              },
          .on_closed =
              [this, opening](Guests::Id id) {
                if (guests_ && opening == openings_) {
                  perform(host_->on_guest_closed(id, time_now()));
                }
              }});
}

void EtcdRendezvous::act(const EtcdHost::CloseDoors&) {
  if (guests_) {
    former_guests_ = std::move(guests_);
    loop_.arm_timer(kDoorTimer, std::chrono::milliseconds(0), [this] {
      former_guests_.reset();
    });
  }
}

void EtcdRendezvous::start_call(const EtcdCall& call) {
  call_.reset();
  call_.emplace(
      loop_,
      [settings = settings_,
       run_id = meeting_.terms.run_id,
       call,
       token = answer_.token] {
        EtcdAnswer answer = call_etcd(settings, run_id, call, token);
        const auto place = answer.coordinator
                               ? decode_place(answer.coordinator->value)
                               : std::nullopt;
        if (place) {
          answer.addresses = encode(ask_name_service(place->endpoint.host));
        }
        return encode_etcd_answer(answer);
      },
      [this](const std::optional<std::string>& text) { take(text); });
  loop_.arm_timer(
      kCallTimer, limit_of(settings_), [this] { take(std::nullopt); });
}

void EtcdRendezvous::take(const std::optional<std::string>& text) {
  loop_.disarm_timer(kCallTimer);
  call_.reset();
  auto answer = text ? decode_etcd_answer(*text) : std::nullopt;
  if (!answer) {
    answer = EtcdAnswer{.text =
                            "no answer in time; check the name service, "
                            "and that etcd's host is there",
                        .token = answer_.token};
  }
  if (answer->local_address.empty()) {
    answer->local_address = answer_.local_address;
  }
  if (!answer->coordinator) {
    answer->addresses = answer_.addresses;
  }
  answer_ = *answer;
  perform(host_->on_answer(*answer, time_now()));
}

void EtcdRendezvous::act(const EtcdHost::Connect& connect) {
  std::vector<SocketAddress> addresses;
  for (const std::string& text : decode_answer(answer_.addresses).addresses) {
    const auto same = addresses_of(text, connect.to.port);
    addresses.insert(addresses.end(), same.begin(), same.end());
  }
  if (addresses.empty()) {
    perform(host_->on_closed(Member::Loss::other, time_now()));
    return;
  }
  const bool is_the_same = link_ && connect.to.host == link_end_.host &&
                           connect.to.port == link_end_.port;
  if (is_the_same) {
    link_->connect();
    return;
  }
  link_end_ = connect.to;
  link_.emplace(
      loop_,
      addresses,
      Link::Handlers{.on_open =
                         [this](const std::string& address) {
                           perform(host_->on_connected(address, time_now()));
                         },
                     .on_message =
                         [this](const Message& message) {
                           perform(host_->on_message(message, time_now()));
                         },
                     .on_lost =
                         [this](Member::Loss loss, const SocketAddress&) {
                           perform(host_->on_closed(loss, time_now()));
                         }});
  link_->connect();
}

void EtcdRendezvous::act(const EtcdHost::HangUp&) {
  if (link_) {
    link_->hang_up();
  }
}

void EtcdRendezvous::act(const EtcdHost::Tell& tell) {
  if (link_) {
    link_->send(tell.message);
  }
}

void EtcdRendezvous::act(const Coordinator::Send& send) {
  if (guests_) {
    guests_->send(send.to, send.message);
  }
}

void EtcdRendezvous::act(const Coordinator::Drop& drop) {
  if (guests_) {
    guests_->part_with(drop.connection);
  }
}

void EtcdRendezvous::set_timer() {
  const auto deadline = host_->next_deadline();
  if (!deadline) {
    loop_.disarm_timer(kHostTimer);
    return;
  }
  const auto delay =
      std::chrono::ceil<std::chrono::milliseconds>(*deadline - time_now());
  loop_.arm_timer(kHostTimer,
                  std::max(delay, std::chrono::milliseconds(0)),
                  [this] { on_time(); });
}

void EtcdRendezvous::on_time() {
  perform(host_->on_time(time_now()));
  if (guests_) {
    guests_->remove_strangers(
        time_now() - meeting_.patience.silence(),
        [this](Guests::Id id) { return host_->is_known(id); });
  }
}

}  // namespace

std::unique_ptr<Rendezvous> make_etcd_rendezvous(EventLoop& loop,
                                                 const Meeting& meeting,
                                                 const std::string& host,
                                                 Rendezvous::Handler handler) {
  return std::make_unique<EtcdRendezvous>(
      loop, meeting, host, std::move(handler));
}

}  // namespace launcher
