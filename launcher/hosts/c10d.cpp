#include <algorithm>
#include <functional>
#include <utility>

#include "launcher/base/error.h"
#include "launcher/base/overloaded.h"
#include "launcher/hosts/coordinator/coordinator.h"
#include "launcher/hosts/coordinator_listener.h"
#include "launcher/hosts/make_rendezvous.h"
#include "launcher/hosts/member/coordinator_connection.h"
#include "launcher/hosts/member/rendezvous_client.h"
#include "launcher/net/address.h"
#include "launcher/net/line_server.h"
#include "launcher/net/name_lookup.h"
#include "launcher/net/port.h"

namespace launcher {
namespace {

using Time = Coordinator::Time;

Time now() {
  return std::chrono::steady_clock::now();
}

/// Rendezvous of c10d hosts, and of static hosts with a coordinator. Gives a
/// RendezvousClient its connection and its clock and, on the endpoint's host,
/// the Coordinator its connections.
class C10dRendezvous : public Rendezvous {
 public:
  C10dRendezvous(EventLoop& loop,
                 CoordinatedConfig config,
                 std::string host,
                 Handler handler,
                 NameService ask)
      : loop_(loop),
        config_(std::move(config)),
        host_(std::move(host)),
        timer_("rendezvous of host " + host_),
        handler_(std::move(handler)),
        name_(config_.coordinator.endpoint,
              config_.timeouts.between_lookups,
              std::move(ask)),
        reserved_port_(config_.store ? config_.store->port : 0) {}
  ~C10dRendezvous() override { loop_.disarm_timer(timer_); }

  void join(const HostOffer& offer) override;
  void report(const HostOutcome& outcome) override {
    perform(client_->report(outcome, now()));
  }
  void leave() override {
    if (client_) {
      perform(client_->leave());
    }
  }
  /// The other hosts learn of this host's last message through the coordinator.
  bool is_over() const override {
    return !server_ || !server_->is_connected_from_here();
  }

 private:
  void start(const HostOffer& offer);
  void start_coordinator(std::vector<Fd> listeners, const std::string& advice);
  bool read_message(LineServer::Id id, const std::string& line);
  std::string find_coordinator();

  /// Runs `action`. If it throws a LaunchError, leaves, answers RendezvousLost
  /// and returns false.
  bool answer_errors(const std::function<void()>& action);
  /// Makes a handler that performs the actions that `decide` returns for the
  /// handler's arguments.
  template <typename Decide>
  auto performing(Decide decide) {
    return
        [this, decide](const auto&... news) { this->perform(decide(news...)); };
  }
  void perform(const RendezvousClient::Actions& actions);
  void perform(const Coordinator::Actions& actions);
  void connect();
  void set_timer();
  void on_time();

  EventLoop& loop_;
  CoordinatedConfig config_;
  std::string host_;
  std::string timer_;  // of this host: a test has two hosts on one loop
  Handler handler_;
  NameLookup name_;
  StorePort reserved_port_;
  int store_port_ = 0;

  std::string own_id_;  // Hello::id of this host
  std::optional<RendezvousClient> client_;
  std::optional<CoordinatorConnection> connection_;

  // On the host that runs the coordinator.
  std::optional<Coordinator> coordinator_;
  std::optional<LineServer> server_;
};

void C10dRendezvous::join(const HostOffer& offer) {
  answer_errors([this, &offer] {
    const bool is_store_elsewhere = config_.store && config_.wanted_rank != 0;
    store_port_ =
        is_store_elsewhere ? config_.store->port : reserved_port_.reserve();
    if (!client_) {
      start(offer);
    }
    perform(client_->join(store_port_, now()));
  });
}

void C10dRendezvous::start(const HostOffer& offer) {
  const Hello hello = hello_of(config_, host_, offer);
  own_id_ = hello.id;
  connection_.emplace(
      loop_,
      CoordinatorConnection::Handlers{
          .on_open = performing([this](const std::string& address) {
            return client_->on_connected(address, now());
          }),
          .on_message = performing([this](const Message& message) {
            return client_->on_message(message, now());
          }),
          .on_lost = performing([this](const std::string& how, bool is_gone) {
            return client_->on_closed(now(), how, is_gone);
          })});
  client_.emplace(RendezvousClient::Options{
      .hello = hello,
      .endpoint = text_of(config_.coordinator.endpoint),
      .option = config_.coordinator.host_option,
      .local_address = config_.local_address,
      .timeouts = config_.timeouts});
}

void C10dRendezvous::start_coordinator(std::vector<Fd> listeners,
                                       const std::string& advice) {
  coordinator_.emplace(Coordinator::Options{.own_id = own_id_,
                                            .terms = config_.terms,
                                            .token = config_.token,
                                            .advice = advice,
                                            .timeouts = config_.timeouts},
                       now());
  server_.emplace(
      loop_,
      std::move(listeners),
      max_connections(config_.terms),
      kLongestMessage,
      LineServer::Handlers{
          .on_line =
              [this](LineServer::Id id, const std::string& line) {
                return read_message(id, line);
              },
          .on_closed = performing([this](LineServer::Id id, int error) {
            return coordinator_->on_closed(id, now(), end_text(error));
          }),
          .is_known =
              [this](LineServer::Id id) {
                return coordinator_->is_known(id);
              }});
}

/// Whether the line is a message.
bool C10dRendezvous::read_message(LineServer::Id id, const std::string& line) {
  const auto message = decode(line);
  if (!message) {
    return false;
  }
  perform(coordinator_->on_message(id, *message, now()));
  return true;
}

bool C10dRendezvous::answer_errors(const std::function<void()>& action) {
  try {
    action();
    return true;
  } catch (const LaunchError& error) {
    leave();
    handler_(RendezvousLost{error.what()});
    return false;
  }
}

void C10dRendezvous::perform(const RendezvousClient::Actions& actions) {
  for (const RendezvousClient::Action& action : actions) {
    std::visit(
        Overloaded{
            [this](const RendezvousClient::Connect&) { connect(); },
            [this](const RendezvousClient::Disconnect&) {
              connection_->disconnect();
            },
            [this](const Message& message) { connection_->send(message); },
            [this](const RendezvousAnswer& answer) { handler_(answer); }},
        action);
  }
  set_timer();
}

void C10dRendezvous::perform(const Coordinator::Actions& actions) {
  for (const Coordinator::Action& action : actions) {
    if (const auto* drop = std::get_if<Coordinator::Drop>(&action)) {
      server_->close_after_flush(drop->connection);
    } else {
      const auto& send = std::get<Coordinator::Send>(action);
      server_->send(send.to, encode(send.message));
    }
  }
  if (coordinator_->is_done()) {
    // The next job's hosts may connect to this endpoint while this ddprun still
    // writes its output.
    server_->stop_listening();
  }
  set_timer();
}

/// Listens as the coordinator if the endpoint is this host's, else passes the
/// endpoint's addresses to the connection. Returns the reason if it has none.
std::string C10dRendezvous::find_coordinator() {
  const std::optional<Resolved>& found = name_.poll(now());
  if (!found || found->addresses.empty()) {
    return name_.problem();
  }
  std::vector<Fd> listeners =
      listen_as_coordinator(config_.coordinator, found->addresses);
  if (listeners.empty()) {
    connection_->use(found->addresses);
  } else {
    const std::string advice = advice_for(config_, found->addresses, listeners);
    start_coordinator(std::move(listeners), advice);
  }
  return "";
}

void C10dRendezvous::connect() {
  connection_->disconnect();
  std::string problem;
  if (!server_ && !connection_->is_found() &&
      !answer_errors([&] { problem = find_coordinator(); })) {
    return;
  }
  if (!problem.empty()) {
    perform(client_->on_closed(now(), problem));
  } else if (server_) {
    connection_->connect_to(*server_, config_.coordinator.endpoint.host);
  } else {
    connection_->connect();
  }
}

void C10dRendezvous::set_timer() {
  std::optional<Time> deadline = client_->next_deadline();
  if (coordinator_ && !coordinator_->is_done()) {
    const Time other = coordinator_->next_deadline();
    deadline = std::min(deadline.value_or(other), other);
  }
  loop_.arm_timer_at(timer_, deadline, [this] { on_time(); });
}

void C10dRendezvous::on_time() {
  perform(client_->on_time(now()));
  if (!coordinator_) {
    return;
  }
  perform(coordinator_->on_time(now()));
  server_->drop_idle(now() - config_.timeouts.silence());
}

}  // namespace

std::unique_ptr<Rendezvous> make_c10d_rendezvous(
    EventLoop& loop,
    const CoordinatedConfig& config,
    const std::string& host,
    const Rendezvous::Handler& handler,
    const NameService& ask) {
  return std::make_unique<C10dRendezvous>(loop, config, host, handler, ask);
}

}  // namespace launcher
