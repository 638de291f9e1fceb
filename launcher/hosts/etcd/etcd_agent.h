#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/hosts/coordinator/coordinator.h"
#include "launcher/hosts/etcd/leader_election.h"
#include "launcher/hosts/member/rendezvous_client.h"
#include "launcher/options/rendezvous_config.h"

namespace launcher {

/// One host of a job that uses etcd. Joins a RendezvousClient, the
/// LeaderElection that finds its coordinator and, on the elected host, the
/// Coordinator. Pure, as its parts are.
///
/// Hosts learn of a world once etcd has its generation. The next coordinator
/// begins above that generation, so no generation has two groups.
class EtcdAgent {
 public:
  using Time = LeaderElection::Time;
  using Connection = Coordinator::Connection;

  struct Options {
    EtcdConfig config;
    Hello hello;
    std::string etcd;  ///< "etcd at host:port", for messages
  };

  // Connection to the coordinator; there is one at a time.
  struct Connect {
    std::optional<Endpoint> to;  ///< nothing: this host's own coordinator
  };
  struct Disconnect {};
  struct SendToCoordinator {
    Message message;
  };
  /// Closes the listeners and the connections of other hosts: this host does
  /// not coordinate.
  struct CloseListeners {};

  /// For an EtcdCall the caller passes one answer to on_answer(), unless
  /// another call follows. Before a campaign the caller listens for other
  /// hosts, and fills in EtcdCall::coordinator with its own address.
  using Action = std::variant<EtcdCall,
                              Connect,
                              Disconnect,
                              SendToCoordinator,
                              CloseListeners,
                              Coordinator::Send,
                              Coordinator::Drop,
                              RendezvousAnswer>;
  using Actions = std::vector<Action>;

  explicit EtcdAgent(Options options);

  Actions join(int store_port, Time now);
  Actions report(const HostOutcome& outcome, Time now);
  /// Takes no further part; this host's workers may still run.
  Actions leave(Time now);
  /// This host's workers have ended.
  Actions end(Time now);
  Actions on_answer(const EtcdAnswer& answer, Time now);
  Actions on_time(Time now);

  // Events of the connection to the coordinator.
  Actions on_connected(const std::string& address, Time now);
  Actions on_closed(RendezvousClient::Loss loss,
                    Time now,
                    const std::string& how = "");
  Actions on_message(const Message& message, Time now);

  // Events of the connections of other hosts.
  Actions on_host_message(Connection from, const Message& message, Time now);
  Actions on_host_closed(Connection connection,
                         Time now,
                         const std::string& how = "");
  bool is_known(Connection connection) const {
    return coordinator_ && coordinator_->is_known(connection);
  }

  std::optional<Time> next_deadline() const;
  /// Whether this host has left and no request to etcd is open.
  bool is_over() const { return has_left_ && election_.is_over(); }
  bool is_coordinator() const { return coordinator_.has_value(); }
  /// State of the job in etcd, if this host coordinates.
  const EtcdJobState& saved() const { return election_.saved(); }

 private:
  void advance(Time now) { now_ = std::max(now, now_); }
  Actions take_actions() { return std::exchange(actions_, {}); }
  /// @param is_from_coordinator  whether a message of the coordinator caused
  ///   the actions
  void perform(const RendezvousClient::Actions& actions,
               bool is_from_coordinator = false);
  void perform(const Coordinator::Actions& actions);
  void perform(const LeaderElection::Actions& actions);
  void perform_one(const EtcdCall& call) { actions_.push_back(call); }
  void perform_one(const LeaderElection::Follow& follow);
  void perform_one(const LeaderElection::Lead& lead);
  void perform_one(const LeaderElection::Fence&);
  void perform_one(const LeaderElection::Resign&);
  void perform_one(const LeaderElection::Saved&);
  void perform_one(const RendezvousAnswer& answer);
  void on_client_answer(const RendezvousAnswer& answer,
                        bool is_from_coordinator);
  void send_when_saved(const Coordinator::Send& send);
  void stop_taking_part();
  void stop_coordinating();

  Options options_;
  RendezvousClient client_;
  LeaderElection election_;
  std::optional<Coordinator> coordinator_;
  std::optional<CoordinatorPlace> followed_;  // coordinator on another host
  bool has_left_ = false;
  // Worlds whose generation etcd does not have yet.
  std::map<Connection, Coordinator::Send> held_;
  Time now_{};
  Actions actions_;
};

}  // namespace launcher
