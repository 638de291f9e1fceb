#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/hosts/coordinator/coordinator.h"
#include "launcher/hosts/etcd/leader_election.h"
#include "launcher/hosts/member/rendezvous_client.h"
#include "launcher/hosts/protocol/task_queue.h"

namespace launcher {

/// One host of a job that meets by etcd: a RendezvousClient, the LeaderElection
/// that says where its coordinator is and, on the host that it has come to, the
/// Coordinator. Pure, as they are.
///
/// A world is told of when etcd has its generation, not before: the next
/// coordinator begins above it, so there are never two groups of one.
class EtcdAgent {
 public:
  using Time = LeaderElection::Time;
  using Client = Coordinator::Connection;

  struct Options {
    Meeting meeting;
    Hello hello;
    std::string etcd;  ///< "etcd at host:port", for people
  };

  /// To a coordinator in another process, one at a time.
  struct Connect {
    Endpoint to;
  };
  struct HangUp {};
  struct Tell {
    Message message;
  };
  /// Takes no more guests, and parts with all: this host does not coordinate.
  struct CloseListeners {};

  /// Of an EtcdCall the shell hears again by on_answer(), once, unless another
  /// call follows. Before it campaigns, the shell lets guests in, and fills in
  /// the place where.
  using Action = std::variant<EtcdCall,
                              Connect,
                              HangUp,
                              Tell,
                              CloseListeners,
                              Coordinator::Send,
                              Coordinator::Drop,
                              RendezvousAnswer>;
  using Actions = std::vector<Action>;

  explicit EtcdAgent(Options options);

  Actions join(int store_port, Time now);
  Actions report(const HostOutcome& outcome, Time now);
  /// Takes no further part; its workers may still run.
  Actions leave(Time now);
  /// They have ended.
  Actions end(Time now);
  Actions on_answer(const EtcdAnswer& answer, Time now);
  Actions on_time(Time now);

  // Of the connection to the coordinator.
  Actions on_connected(const std::string& address, Time now);
  Actions on_closed(RendezvousClient::Loss loss, Time now);
  Actions on_message(const Message& message, Time now);

  // Of the guests.
  Actions on_guest_message(Client guest, const Message& message, Time now);
  Actions on_guest_closed(Client guest, Time now);
  bool is_known(Client guest) const {
    return coordinator_ && coordinator_->is_known(guest);
  }

  std::optional<Time> next_deadline() const;
  /// Has left, and nothing is left to be told to etcd.
  bool is_over() const { return has_left_ && election_.is_over(); }
  bool is_coordinator() const { return coordinator_.has_value(); }
  /// What etcd has of the job, of a coordinator here.
  const EtcdJobState& saved() const { return election_.saved(); }
  /// Where this host is, for the others: of a coordinator here.
  void set_address(const std::string& address) { address_ = address; }

 private:
  Actions run(Time now, const TaskQueue::Step& step);
  /// @param is_told  the coordinator has said what the member answers
  void perform(const RendezvousClient::Actions& actions, bool is_told = false);
  void perform(const Coordinator::Actions& actions);
  void perform(const LeaderElection::Actions& actions);
  void take(const RendezvousAnswer& answer, bool is_told);
  void stop_taking_part();
  void act(const EtcdCall& call) { actions_.push_back(call); }
  void act(const LeaderElection::Follow& follow);
  void act(const LeaderElection::Host& host);
  void act(const LeaderElection::Fence&);
  void act(const LeaderElection::Resign&);
  void act(const LeaderElection::Saved&);
  void act(const RendezvousAnswer& answer);
  void connect();
  void tell(const Message& message);
  void send(const Coordinator::Send& send);
  void deliver(const Coordinator::Send& send);
  void stop_coordinating();

  Options options_;
  RendezvousClient member_;
  LeaderElection election_;
  std::optional<Coordinator> coordinator_;
  std::optional<CoordinatorPlace> place_;  // of another host's
  std::string address_;
  bool has_left_ = false;
  std::map<Client, Coordinator::Send> held_;  // until etcd has the generation
  Time now_{};
  TaskQueue steps_;
  Actions actions_;
};

}  // namespace launcher
