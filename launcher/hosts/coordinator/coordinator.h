#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "launcher/hosts/coordinator/gathering.h"
#include "launcher/hosts/coordinator/host_table.h"
#include "launcher/hosts/protocol/message.h"
#include "launcher/options/rendezvous_config.h"

namespace launcher {

/// Forms the worlds of one job from the hosts that are connected to it, and
/// breaks them. Messages and time come in, messages go out. Pure: it has no
/// sockets and no clock. Its counterpart on every host is a RendezvousClient.
///
/// - gathering: waits for a world with as many hosts as the last one had (the
///   first time: most_hosts); see Gathering. Hosts above most_hosts are spare.
///
/// - running: the world breaks when a host joins (below most_hosts, and before
///   any host has succeeded), vanishes, leaves or fails. Gathering follows. The
///   failure that arrives first costs one of max_restarts; the other changes
///   cost nothing. When all hosts have succeeded the job is closed.
///
/// - closing: the job has succeeded, or a host has failed and no restart is
///   left or the host calls its failure final, or too few hosts are left, or
///   the coordinator's own host leaves. All hosts are told. The coordinator's
///   own host is told last, because it ends with the coordinator. A host that
///   never took part in the job is dropped without an answer: it belongs to the
///   next job at this endpoint.
///
/// Generation numbers are never reused and exceed every number that any host
/// has seen. A host that is in another state than the coordinator expects gets
/// the changes as an answer to each of its messages.
///
/// A host that is silent for RendezvousTimeouts::silence() is removed. If the
/// connection of a host ends, the host is removed unless it connects again
/// within a keep-alive interval. A running ddprun connects again at once, sends
/// its Hello::id and keeps its place; a killed ddprun does not.
class Coordinator {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Connection = uint64_t;

  struct Options {
    /// Hello::id of the host that runs this coordinator. It is told last that
    /// the job is closed, is never silent, and closes the job by leaving.
    std::string own_id{};
    JobTerms terms;
    std::string token;  ///< token that hosts must have; empty: none
    /// End of the text for hosts that wait for others: possible reasons why the
    /// others do not come.
    std::string advice{};
    RendezvousTimeouts timeouts{};
  };

  struct Send {
    Connection to;
    Message message;
  };
  /// Close the connection after sending all messages to it.
  struct Drop {
    Connection connection;
  };
  using Action = std::variant<Send, Drop>;
  using Actions = std::vector<Action>;

  Coordinator(Options options, Time now);

  Actions on_message(Connection from, const Message& message, Time now);
  /// A connection has ended. Optional for dropped connections.
  ///
  /// @param how  reason for messages; empty: not known
  Actions on_closed(Connection connection,
                    Time now,
                    const std::string& how = "");
  Actions on_time(Time now);

  /// Time of the next on_time().
  Time next_deadline() const;

  /// Whether a host of the job has this connection.
  bool is_known(Connection connection) const {
    return hosts_.count(connection) > 0;
  }
  /// Result of the job, once it has ended.
  std::optional<JobClosed> closed() const {
    return phase_ == Phase::closing || phase_ == Phase::done
               ? std::optional(closed_)
               : std::nullopt;
  }
  /// Whether all hosts know the result of the job.
  bool is_done() const { return phase_ == Phase::done; }

 private:
  enum class Phase { gathering, running, closing, done };
  void advance(Time now);
  /// Makes the changes that are due, and answers `asker`, or all hosts after a
  /// change for all.
  Actions update_and_answer(std::optional<Connection> asker);

  void on_hello(Connection from, const Hello& hello);
  void on_state(Connection from, const HostState& state);
  void on_state_in_world(KnownHost& host);
  void on_connection_lost(HostTable::iterator away, const std::string& how);
  void remove(HostTable::iterator gone,
              WorldBroken::Change change,
              const std::string& how = "");
  void remove_silent_hosts();
  void on_failure(const KnownHost& host, const HostFailed& failure);

  void break_world(WorldBroken why);
  void form_or_give_up();
  void form();
  void close(int exit_code, const std::string& text);
  void finish_closing();
  void send_answer(Connection connection, const KnownHost& host);
  std::string waiting_text(const KnownHost& host) const;
  std::string advice() const;

  bool is_own(const KnownHost& host) const {
    return host.hello.id == options_.own_id;
  }
  bool is_own_alone() const;
  bool is_at_work(const KnownHost& host) const;
  bool have_all_succeeded() const;

  Options options_;
  Phase phase_ = Phase::gathering;
  HostTable hosts_;
  std::set<std::string> known_ids_;  // of all hosts that were ever admitted
  Time next_removal_;                // no host is removed before this time
  Time now_;
  Time closing_since_;
  Gathering gathering_;
  int last_host_count_ = 0;  // of the present world, else of the last one
  int generation_ = -1;
  int restarts_ = 0;
  int64_t arrivals_ = 0;      // number of hosts that were ever admitted
  bool has_success_ = false;  // of a host in the present world
  bool answer_all_ = false;   // a change for all hosts
  /// Change that ended the last world. The initial value is for a world of an
  /// earlier coordinator at this endpoint, which a host may still know.
  WorldBroken broken_{WorldBroken::Change::vanished, "where the hosts meet"};
  JobClosed closed_{0};
  Actions actions_;
};

}  // namespace launcher
