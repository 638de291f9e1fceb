#include <optional>
#include <system_error>
#include <utility>

#include "launcher/base/error.h"
#include "launcher/hosts/coordinator_listener.h"
#include "launcher/hosts/etcd/client.h"
#include "launcher/hosts/etcd/etcd_agent.h"
#include "launcher/hosts/make_rendezvous.h"
#include "launcher/hosts/member/coordinator_connection.h"
#include "launcher/hosts/member/rendezvous_client.h"
#include "launcher/hosts/reading_messages.h"
#include "launcher/net/address.h"
#include "launcher/net/connection.h"
#include "launcher/net/line_server.h"
#include "launcher/net/port.h"

namespace launcher {
namespace {

constexpr const char* kAgentTimer = "etcd rendezvous";
constexpr const char* kClosingTimer = "connections of a former coordinator";

EtcdAgent::Time time_now() {
  return std::chrono::steady_clock::now();
}

/// Rendezvous of hosts that find their coordinator through etcd. Gives an
/// EtcdAgent its connections, its clock and its requests to etcd.
class EtcdRendezvous : public Rendezvous {
 public:
  EtcdRendezvous(EventLoop& loop,
                 EtcdConfig config,
                 std::string host,
                 Handler handler)
      : loop_(loop),
        config_(std::move(config)),
        host_(std::move(host)),
        handler_(std::move(handler)),
        client_(loop,
                config_.etcd,
                config_.terms.run_id,
                [this](const EtcdAnswer& answer) {
                  perform(agent_->on_answer(answer, time_now()));
                }) {}
  ~EtcdRendezvous() override {
    loop_.disarm_timer(kAgentTimer);
    loop_.disarm_timer(kClosingTimer);
  }

  void join(const HostOffer& offer) override;
  void report(const HostOutcome& outcome) override {
    perform(agent_->report(outcome, time_now()));
  }
  void leave() override {
    if (agent_) {
      perform(agent_->leave(time_now()));
    }
  }
  void end() override {
    if (agent_) {
      perform(agent_->end(time_now()));
    }
  }
  bool is_over() const override { return !agent_ || agent_->is_over(); }

 private:
  void perform(const EtcdAgent::Actions& actions);
  void perform_one(EtcdCall call);
  void perform_one(const EtcdAgent::Connect& connect);
  void perform_one(const EtcdAgent::Disconnect&);
  void perform_one(const EtcdAgent::SendToCoordinator& send);
  void perform_one(const EtcdAgent::CloseListeners&);
  void perform_one(const Coordinator::Send& send);
  void perform_one(const Coordinator::Drop& drop);
  void perform_one(const RendezvousAnswer& answer) { handler_(answer); }

  void listen_on_free_port();
  void set_timer();
  void on_time();

  EventLoop& loop_;
  EtcdConfig config_;
  std::string host_;
  Handler handler_;
  EtcdClient client_;
  StorePort port_{0};

  std::optional<EtcdAgent> agent_;
  CoordinatorPlace own_place_;
  int server_number_ = 0;
  std::unique_ptr<LineServer> server_;
  // A closed server, which may be an outer frame of the present call.
  std::unique_ptr<LineServer> former_server_;
  std::optional<CoordinatorConnection> connection_;
  Endpoint connection_end_;
};

void EtcdRendezvous::join(const HostOffer& offer) {
  try {
    const int store_port = port_.reserve();
    if (!agent_) {
      const Hello hello = hello_of(config_, host_, offer);
      own_place_ = {.id = hello.id, .host = host_};
      agent_.emplace(EtcdAgent::Options{
          .config = config_, .hello = hello, .etcd = etcd_name(config_.etcd)});
    }
    perform(agent_->join(store_port, time_now()));
  } catch (const LaunchError& error) {
    handler_(RendezvousLost{error.what()});
  }
}

void EtcdRendezvous::perform(const EtcdAgent::Actions& actions) {
  for (const EtcdAgent::Action& action : actions) {
    std::visit([this](const auto& known) { perform_one(known); }, action);
  }
  set_timer();
}

void EtcdRendezvous::perform_one(EtcdCall call) {
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
  if (server_) {
    return;
  }
  const std::string host = client_.own_address(config_.local_address);
  Listeners listeners = launcher::listen_on_free_port(host);
  own_place_.endpoint = listeners.endpoint;
  const int number = ++server_number_;
  server_ = std::make_unique<LineServer>(
      loop_,
      std::move(listeners.listeners),
      max_connections(config_.terms),
      kLongestMessage,
      LineServer::Handlers{
          .on_line = reading_messages(
              [this, number](LineServer::Id id, const Message& message) {
                if (server_ && number == server_number_) {
                  perform(agent_->on_host_message(id, message, time_now()));
                }
              },
              [this](LineServer::Id id) {
                return server_ ? server_->address_there(id) : "";
              }),
          .on_closed =
              [this, number](LineServer::Id id, int error) {
                if (server_ && number == server_number_) {
                  perform(
                      agent_->on_host_closed(id, time_now(), end_text(error)));
                }
              },
          .is_known =
              [this](LineServer::Id id) { return agent_->is_known(id); }});
}

void EtcdRendezvous::perform_one(const EtcdAgent::CloseListeners&) {
  if (server_) {
    former_server_ = std::move(server_);
    loop_.arm_timer(kClosingTimer, std::chrono::milliseconds(0), [this] {
      former_server_.reset();
    });
  }
}

void EtcdRendezvous::perform_one(const EtcdAgent::Connect& connect) {
  const Endpoint to = connect.to.value_or(own_place_.endpoint);
  const auto addresses = with_port(client_.coordinator_addresses(), to.port);
  if (connect.to && addresses.empty()) {
    perform(agent_->on_closed(RendezvousClient::Loss::other, time_now()));
    return;
  }
  const bool is_the_same = connection_ && to.host == connection_end_.host &&
                           to.port == connection_end_.port;
  if (!is_the_same) {
    connection_end_ = to;
    connection_.emplace(
        loop_,
        addresses,
        CoordinatorConnection::Handlers{
            .on_open =
                [this](const std::string& address) {
                  perform(agent_->on_connected(address, time_now()));
                },
            .on_message =
                [this](const Message& message) {
                  perform(agent_->on_message(message, time_now()));
                },
            .on_lost =
                [this](RendezvousClient::Loss loss, const std::string& how) {
                  perform(agent_->on_closed(loss, time_now(), how));
                }});
  }
  if (connect.to) {
    connection_->connect();
  } else {
    connection_->connect_to(*server_, to.host);
  }
}

void EtcdRendezvous::perform_one(const EtcdAgent::Disconnect&) {
  if (connection_) {
    connection_->disconnect();
  }
}

void EtcdRendezvous::perform_one(const EtcdAgent::SendToCoordinator& send) {
  if (connection_) {
    connection_->send(send.message);
  }
}

void EtcdRendezvous::perform_one(const Coordinator::Send& send) {
  if (server_) {
    server_->send(send.to, encode(send.message));
  }
}

void EtcdRendezvous::perform_one(const Coordinator::Drop& drop) {
  if (server_) {
    server_->close_after_flush(drop.connection);
  }
}

void EtcdRendezvous::set_timer() {
  loop_.arm_timer_at(
      kAgentTimer, agent_->next_deadline(), [this] { on_time(); });
}

void EtcdRendezvous::on_time() {
  perform(agent_->on_time(time_now()));
  if (server_) {
    server_->drop_idle(time_now() - config_.timeouts.silence());
  }
}

}  // namespace

std::unique_ptr<Rendezvous> make_etcd_rendezvous(EventLoop& loop,
                                                 const EtcdConfig& config,
                                                 const std::string& host,
                                                 Rendezvous::Handler handler) {
  return std::make_unique<EtcdRendezvous>(
      loop, config, host, std::move(handler));
}

}  // namespace launcher
