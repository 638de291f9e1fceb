#include <optional>
#include <system_error>
#include <utility>

#include "launcher/base/error.h"
#include "launcher/base/overloaded.h"
#include "launcher/hosts/coordinator/admission.h"
#include "launcher/hosts/etcd/client.h"
#include "launcher/hosts/etcd/etcd_agent.h"
#include "launcher/hosts/member/coordinator_connection.h"
#include "launcher/hosts/protocol/meeting_place.h"
#include "launcher/hosts/reading_messages.h"
#include "launcher/net/address.h"
#include "launcher/net/host_name.h"
#include "launcher/net/line_server.h"
#include "launcher/net/listeners.h"
#include "launcher/net/port.h"

namespace launcher {
namespace {

constexpr const char* kHostTimer = "etcd rendezvous";
constexpr const char* kDoorTimer = "doors of a former coordinator";

EtcdAgent::Time time_now() {
  return std::chrono::steady_clock::now();
}

/// The sockets, the clock and the calls of an EtcdAgent.
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
        handler_(std::move(handler)),
        client_(loop,
                settings_,
                meeting.terms.run_id,
                [this](const EtcdAnswer& answer) {
                  perform(host_->on_answer(answer, time_now()));
                }) {}
  ~EtcdRendezvous() override {
    loop_.disarm_timer(kHostTimer);
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
  void end() override {
    if (host_) {
      perform(host_->end(time_now()));
    }
  }
  bool is_over() const override { return !host_ || host_->is_over(); }

 private:
  void perform(const EtcdAgent::Actions& actions);
  void act(EtcdCall call);
  void act(const EtcdAgent::Connect& connect);
  void act(const EtcdAgent::HangUp&);
  void act(const EtcdAgent::Tell& tell);
  void act(const EtcdAgent::CloseListeners&);
  void act(const Coordinator::Send& send);
  void act(const Coordinator::Drop& drop);
  void act(const RendezvousAnswer& answer) { handler_(answer); }

  void listen_on_free_port();
  void set_timer();
  void on_time();

  EventLoop& loop_;
  Meeting meeting_;
  EtcdSettings settings_;
  std::string name_;
  Handler handler_;
  EtcdClient client_;
  StorePort port_{0};

  std::optional<EtcdAgent> host_;
  CoordinatorPlace own_place_;
  int openings_ = 0;
  std::unique_ptr<LineServer> guests_;
  std::unique_ptr<LineServer> former_guests_;  // may be at work just now
  std::optional<CoordinatorConnection> link_;
  Endpoint link_end_;
};

void EtcdRendezvous::join(const HostOffer& offer) {
  try {
    const int store_port = port_.reserve();
    if (!host_) {
      const Hello hello = hello_of(meeting_, name_, offer);
      own_place_ = {.id = hello.id, .host = name_};
      host_.emplace(EtcdAgent::Options{
          .meeting = meeting_, .hello = hello, .etcd = etcd_name(settings_)});
    }
    perform(host_->join(store_port, time_now()));
  } catch (const LaunchError& error) {
    handler_(RendezvousLost{error.what()});
  }
}

void EtcdRendezvous::perform(const EtcdAgent::Actions& actions) {
  for (const EtcdAgent::Action& action : actions) {
    std::visit([this](const auto& known) { act(known); }, action);
  }
  set_timer();
}

void EtcdRendezvous::act(EtcdCall call) {
  try {
    if (call.kind == EtcdCall::Kind::campaign) {
      listen_on_free_port();
      call.coordinator = encode(own_place_);
    }
    client_.start(call);
  } catch (const LaunchError& error) {
    handler_(RendezvousLost{error.what()});
  } catch (const std::system_error& error) {
    handler_(RendezvousLost{std::string(error.what()) + "; check ulimit -a"});
  }
}

void EtcdRendezvous::listen_on_free_port() {
  if (guests_) {
    return;
  }
  const std::string host = client_.own_address(meeting_.local_address);
  Listeners doors = launcher::listen_on_free_port(host);
  own_place_.endpoint = doors.endpoint;
  host_->set_address(host);
  const int opening = ++openings_;
  guests_ = std::make_unique<LineServer>(
      loop_,
      std::move(doors.listeners),
      most_guests(meeting_.terms),
      kLongestMessage,
      LineServer::Handlers{
          .on_line = reading_messages(
              [this, opening](LineServer::Id id, const Message& message) {
                if (guests_ && opening == openings_) {
                  perform(host_->on_guest_message(id, message, time_now()));
                }
              },
              [this](LineServer::Id id) {
                return guests_ ? guests_->address_there(id) : "";
              }),
          .on_closed =
              [this, opening](LineServer::Id id, int) {
                if (guests_ && opening == openings_) {
                  perform(host_->on_guest_closed(id, time_now()));
                }
              },
          .is_known =
              [this](LineServer::Id id) { return host_->is_known(id); }});
}

void EtcdRendezvous::act(const EtcdAgent::CloseListeners&) {
  if (guests_) {
    former_guests_ = std::move(guests_);
    loop_.arm_timer(kDoorTimer, std::chrono::milliseconds(0), [this] {
      former_guests_.reset();
    });
  }
}

void EtcdRendezvous::act(const EtcdAgent::Connect& connect) {
  const auto addresses =
      with_port(client_.coordinator_addresses(), connect.to.port);
  if (addresses.empty()) {
    perform(host_->on_closed(RendezvousClient::Loss::other, time_now()));
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
      CoordinatorConnection::Handlers{
          .on_open =
              [this](const std::string& address) {
                perform(host_->on_connected(address, time_now()));
              },
          .on_message =
              [this](const Message& message) {
                perform(host_->on_message(message, time_now()));
              },
          .on_lost =
              [this](RendezvousClient::Loss loss, const std::string&) {
                perform(host_->on_closed(loss, time_now()));
              }});
  link_->connect();
}

void EtcdRendezvous::act(const EtcdAgent::HangUp&) {
  if (link_) {
    link_->hang_up();
  }
}

void EtcdRendezvous::act(const EtcdAgent::Tell& tell) {
  if (link_) {
    link_->send(tell.message);
  }
}

void EtcdRendezvous::act(const Coordinator::Send& send) {
  if (guests_) {
    guests_->send(send.to, encode(send.message));
  }
}

void EtcdRendezvous::act(const Coordinator::Drop& drop) {
  if (guests_) {
    guests_->close_after_flush(drop.connection);
  }
}

void EtcdRendezvous::set_timer() {
  loop_.arm_timer_at(kHostTimer, host_->next_deadline(), [this] { on_time(); });
}

void EtcdRendezvous::on_time() {
  perform(host_->on_time(time_now()));
  if (guests_) {
    guests_->drop_idle(
        time_now() - meeting_.patience.silence(),
        [this](LineServer::Id id) { return host_->is_known(id); });
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
