#include <algorithm>
#include <functional>
#include <utility>

#include "launcher/base/error.h"
#include "launcher/base/overloaded.h"
#include "launcher/hosts/coordinator/admission.h"
#include "launcher/hosts/coordinator/coordinator.h"
#include "launcher/hosts/member/coordinator_connection.h"
#include "launcher/hosts/member/endpoint_name.h"
#include "launcher/hosts/member/rendezvous_client.h"
#include "launcher/hosts/protocol/meeting_place.h"
#include "launcher/hosts/protocol/task_queue.h"
#include "launcher/hosts/reading_messages.h"
#include "launcher/net/address.h"
#include "launcher/net/line_server.h"
#include "launcher/net/port.h"

namespace launcher {
namespace {

using Time = Coordinator::Time;

constexpr const char* kTimer = "rendezvous";

Time now() {
  return std::chrono::steady_clock::now();
}

/// The sockets and the clock of a RendezvousClient and, on the endpoint's host,
/// of the Coordinator.
class C10dRendezvous : public Rendezvous {
 public:
  C10dRendezvous(EventLoop& loop,
                 Meeting meeting,
                 std::string host,
                 Handler handler,
                 std::function<NameAnswer(const std::string& host)> ask)
      : loop_(loop),
        meeting_(std::move(meeting)),
        host_(std::move(host)),
        handler_(std::move(handler)),
        name_(loop,
              {.host = meeting_.endpoint.host,
               .option = meeting_.option,
               .patience = meeting_.patience,
               .ask = std::move(ask)},
              meeting_.endpoint.port),
        port_(meeting_.store ? meeting_.store->port : 0) {}
  ~C10dRendezvous() override { loop_.disarm_timer(kTimer); }

  void join(const HostOffer& offer) override;
  void report(const HostOutcome& outcome) override {
    run([this, outcome] { perform(member_->report(outcome, now())); });
  }
  void leave() override {
    name_.stop();
    if (member_) {
      run([this] { perform(member_->leave()); });
    }
  }
  void end() override {}
  bool is_over() const override { return true; }

 private:
  void start(const std::vector<SocketAddress>& addresses,
             const HostOffer& offer);
  void begin_to_host(std::vector<Fd> listeners);
  void take_fresh_addresses();

  /// What is thrown is the end.
  void guard(const std::function<void()>& act) const;
  void run(TaskQueue::Step step);
  /// A handler whose step performs what `decide` says of its arguments.
  template <typename Decide>
  auto stepping(Decide decide) {
    return [this, decide](const auto&... news) {
      run([this, decide, news...] { perform(decide(news...)); });
    };
  }
  void perform(const RendezvousClient::Actions& actions);
  void perform(const Coordinator::Actions& actions);
  void tell_coordinator(const Message& message);
  void connect();
  void set_timer();
  void on_time();

  EventLoop& loop_;
  Meeting meeting_;
  std::string host_;
  Handler handler_;
  EndpointName name_;
  StorePort port_;
  int store_port_ = 0;

  std::optional<RendezvousClient> member_;
  std::optional<CoordinatorConnection> link_;

  // Where this process has them, it speaks to itself, not over the link.
  std::optional<Coordinator> coordinator_;
  std::optional<LineServer> guests_;

  TaskQueue steps_;
};

void C10dRendezvous::join(const HostOffer& offer) {
  guard([this, &offer] {
    store_port_ = meeting_.store && meeting_.wanted_rank != 0
                      ? meeting_.store->port
                      : port_.reserve();
    if (member_) {
      run([this] { perform(member_->join(store_port_, now())); });
      return;
    }
    name_.look_up(handler_, [this, offer](const auto& found, auto waited) {
      meeting_.patience.join -= waited;
      guard([&] { start(found, offer); });
    });
  });
}

void C10dRendezvous::start(const std::vector<SocketAddress>& addresses,
                           const HostOffer& offer) {
  const Hello hello = hello_of(meeting_, host_, offer);
  std::vector<Fd> listeners = listen_at_meeting(meeting_, addresses);
  if (!listeners.empty()) {
    begin_to_host(std::move(listeners));
  }
  link_.emplace(loop_,
                addresses,
                CoordinatorConnection::Handlers{
                    .on_open = stepping([this](const std::string& address) {
                      return member_->on_connected(address, now());
                    }),
                    .on_message = stepping([this](const Message& message) {
                      return member_->on_message(message, now());
                    }),
                    .on_lost = stepping([this](RendezvousClient::Loss loss,
                                               const std::string& how) {
                      return member_->on_closed(loss, now(), how);
                    })});
  member_.emplace(
      RendezvousClient::Options{.hello = hello,
                                .endpoint = text_of(meeting_.endpoint),
                                .option = meeting_.option,
                                .local_address = meeting_.local_address,
                                .patience = meeting_.patience});
  run([this] { perform(member_->join(store_port_, now())); });
}

void C10dRendezvous::begin_to_host(std::vector<Fd> listeners) {
  const std::string place = meeting_.option + " " + text_of(meeting_.endpoint);
  coordinator_.emplace(
      Coordinator::Options{
          .terms = meeting_.terms,
          .start_hosts = meeting_.start_hosts,
          .token = meeting_.token,
          .loopback_place = are_on_loopback(listeners) ? place : "",
          .patience = meeting_.patience},
      now());
  guests_.emplace(
      loop_,
      std::move(listeners),
      most_guests(meeting_.terms),
      kLongestMessage,
      LineServer::Handlers{
          .on_line = reading_messages(
              stepping([this](LineServer::Id id, const Message& message) {
                return coordinator_->on_message(id, message, now());
              }),
              [this](LineServer::Id id) { return guests_->address_there(id); }),
          .on_closed = stepping([this](LineServer::Id id, int error) {
            return coordinator_->on_closed(id, now(), end_text(error));
          }),
          .is_known = [this](LineServer::Id id) {
            return coordinator_->is_known(id);
          }});
}

void C10dRendezvous::guard(const std::function<void()>& act) const {
  try {
    act();
  } catch (const LaunchError& error) {
    handler_(RendezvousLost{error.what()});
  }
}

void C10dRendezvous::run(TaskQueue::Step step) {
  if (steps_.run(std::move(step))) {
    set_timer();
  }
}

void C10dRendezvous::perform(const RendezvousClient::Actions& actions) {
  for (const RendezvousClient::Action& action : actions) {
    std::visit(
        Overloaded{
            [this](const RendezvousClient::Connect&) { connect(); },
            [this](const RendezvousClient::Disconnect&) { link_->hang_up(); },
            [this](const Message& message) { tell_coordinator(message); },
            [this](const RendezvousAnswer& answer) { handler_(answer); }},
        action);
  }
}

void C10dRendezvous::perform(const Coordinator::Actions& actions) {
  for (const Coordinator::Action& action : actions) {
    if (const auto* drop = std::get_if<Coordinator::Drop>(&action)) {
      guests_->close_after_flush(drop->connection);
      continue;
    }
    const auto& send = std::get<Coordinator::Send>(action);
    if (send.to != Coordinator::kOwn) {
      guests_->send(send.to, encode(send.message));
      continue;
    }
    run([this, message = send.message] {
      perform(member_->on_message(message, now()));
    });
  }
  if (coordinator_->is_done()) {
    // The next job's hosts may come to this endpoint while this ddprun still
    // writes its output.
    guests_->stop_listening();
  }
}

void C10dRendezvous::tell_coordinator(const Message& message) {
  if (!coordinator_) {
    link_->send(message);
    return;
  }
  run([this, message] {
    perform(coordinator_->on_message(Coordinator::kOwn, message, now()));
  });
}

/// The name may mean another host by now, or this one.
void C10dRendezvous::take_fresh_addresses() {
  const std::vector<SocketAddress> fresh = name_.take_fresh();
  if (fresh.empty() || link_->is_found()) {
    return;
  }
  std::vector<Fd> listeners = listen_at_meeting(meeting_, fresh);
  if (listeners.empty()) {
    link_->use(fresh);
  } else {
    begin_to_host(std::move(listeners));
  }
}

void C10dRendezvous::connect() {
  if (!coordinator_) {
    guard([this] { take_fresh_addresses(); });
  }
  if (!coordinator_) {
    link_->connect();
    return;
  }
  run([this] {
    perform(member_->on_connected(meeting_.endpoint.host, now()));
  });
}

void C10dRendezvous::set_timer() {
  std::optional<Time> deadline = member_->next_deadline();
  if (coordinator_ && !coordinator_->is_done()) {
    const Time other = coordinator_->next_deadline();
    deadline = std::min(deadline.value_or(other), other);
  }
  loop_.arm_timer_at(kTimer, deadline, [this] { on_time(); });
}

void C10dRendezvous::on_time() {
  run([this] { perform(member_->on_time(now())); });
  if (!coordinator_) {
    return;
  }
  run([this] { perform(coordinator_->on_time(now())); });
  guests_->drop_idle(
      now() - meeting_.patience.silence(),
      [this](LineServer::Id id) { return coordinator_->is_known(id); });
}

}  // namespace

std::unique_ptr<Rendezvous> make_c10d_rendezvous(
    EventLoop& loop,
    const Meeting& meeting,
    const std::string& host,
    Rendezvous::Handler handler,
    std::function<NameAnswer(const std::string& host)> ask) {
  return std::make_unique<C10dRendezvous>(
      loop, meeting, host, std::move(handler), std::move(ask));
}

}  // namespace launcher
