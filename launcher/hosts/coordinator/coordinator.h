#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "launcher/hosts/coordinator/gathering.h"
#include "launcher/hosts/protocol/host_table.h"
#include "launcher/hosts/protocol/message.h"
#include "launcher/options/meeting.h"

namespace launcher {

/// Forms the worlds of one job from the hosts that are connected to it, and
/// breaks them: messages and time in, messages out. Pure: it has no sockets and
/// no clock. Its counterpart on every host is a RendezvousClient.
///
/// - gathering: for a world of as many hosts as the last one had (the first
///   time: start_hosts), or of those there are (Gathering). Hosts above
///   most_hosts are spare.
///
/// - running: a host that joins (below most_hosts, and while none has
///   succeeded), vanishes, leaves or fails breaks the world: gathering again,
///   after a failure once it is judged. A failure costs one of max_restarts (of
///   the window, if there is one) and a pause, the others nothing. When all
///   hosts have succeeded the job is closed.
///
/// - judging: a world ends by a failure. All its hosts are asked for theirs,
///   and when they have answered, or after half a second, the one that arrived
///   first counts. A host that has said nothing since is waited for: if it
///   vanishes, that has broken the world, and the failure does not count.
///
/// - closing: also by a failure without restarts left, or that its host says is
///   final, by too few hosts, or when the coordinator's own host leaves. All
///   are told, this host last, since it ends with the coordinator. A host that
///   was never part of the job is dropped without an answer: it belongs to the
///   next job at this endpoint.
///
/// A generation is formed once and never again, and above all that any host has
/// seen. A host that stands elsewhere than the coordinator thinks is told so at
/// each of its messages.
///
/// A host that is silent for RendezvousTimeouts::silence() has vanished, unless
/// it was this process that slept. So has one whose connection has ended, if it
/// does not come back on another one within two seconds: a ddprun that was
/// killed does not, one whose connection was cut does so at once, and keeps its
/// place.
class Coordinator {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Connection = uint64_t;
  /// Of the RendezvousClient in this process.
  static constexpr Connection kOwn = 0;

  /// What of a job another coordinator can go on with.
  struct Past {
    int generation = -1;
    int host_count = 0;  ///< of its last world
    int restarts = 0;
    std::vector<std::chrono::milliseconds> restart_ages{};
    std::optional<WorldBroken> lost{};  ///< by what that world ended
  };

  struct Options {
    JobTerms terms;
    int start_hosts = 1;  ///< that the first world waits for
    std::string token;    ///< empty: none is asked for
    /// The option that names where the hosts meet, and its value, if no other
    /// machine reaches that.
    std::string loopback_place{};
    RendezvousTimeouts patience{};
    Past past{};
  };

  struct Send {
    Connection to;
    Message message;
  };
  struct Drop {  ///< after what was sent to it before
    Connection connection;
  };
  using Action = std::variant<Send, Drop>;
  using Actions = std::vector<Action>;

  Coordinator(Options options, Time now);

  Actions on_message(Connection from, const Message& message, Time now);
  /// A connection has ended. Those that were dropped may be told or not.
  ///
  /// @param how for people; empty: not known
  Actions on_closed(Connection connection,
                    Time now,
                    const std::string& how = "");
  Actions on_time(Time now);
  /// Breaks the present world, if its hosts still run: they join again for the
  /// next one.
  ///
  /// @param why  named to the hosts as what has vanished
  Actions suspend(const std::string& why, Time now);

  /// When to call on_time() next.
  Time next_deadline() const;

  /// A host said hello there and is still part of the job.
  bool is_known(Connection connection) const {
    return hosts_.count(connection) > 0;
  }
  Past past(Time now) const;
  /// How the job ended, once it has.
  std::optional<JobClosed> closed() const {
    return phase_ == Phase::closing || phase_ == Phase::done
               ? std::optional(closed_)
               : std::nullopt;
  }
  /// All have been told how the job ended.
  bool is_done() const { return phase_ == Phase::done; }

 private:
  enum class Phase { gathering, running, judging, closing, done };
  void advance(Time now);
  Actions settle(std::optional<Connection> asker);

  void welcome(Connection from, const Hello& hello);
  bool is_there(HostTable::value_type& entry);
  void take(Connection from, const HostState& state);
  void take_of_present(KnownHost& host);
  void begin_absence(HostTable::iterator away, const std::string& how);
  void end_absence(KnownHost& host);
  Time missed_at(const KnownHost& host) const;
  void remove(HostTable::iterator gone,
              WorldBroken::Change change,
              const std::string& how = "");
  void remove_missed();
  void fail(const KnownHost& host, const HostFailed& failure);
  bool waits_for_silent_host() const;
  void judge_failure();

  void break_world(WorldBroken why, Time::duration pause = {});
  void form_or_give_up();
  void form();
  void close(int exit_code, const std::string& text);
  void finish_closing();
  void answer(Connection connection, const KnownHost& host);
  bool is_behind_other_address(Connection connection,
                               const KnownHost& host) const;
  std::string waits_for(const KnownHost& host) const;
  std::string loopback_hint() const;

  bool is_own_alone() const;
  bool has_world() const {
    return phase_ == Phase::running || phase_ == Phase::judging;
  }

  Options options_;
  Phase phase_ = Phase::gathering;
  HostTable hosts_;
  std::set<std::string> known_ids_;  // of all hosts that were ever admitted
  HostCounts tally_;                 // of hosts_
  Time next_missed_;                 // no host is missed before it
  Time now_;
  Time closing_since_;
  Time judging_since_{};
  struct ToldFailure {
    std::string id;    // of the host
    std::string host;  // its name
    HostFailed failure;
  };
  std::optional<ToldFailure> first_failure_;  // in the present world
  Gathering gathering_;
  int last_host_count_ = 0;  // of the present world, else of the last
  int generation_ = -1;
  int restarts_ = 0;
  RestartBudget budget_;
  int64_t arrivals_ = 0;
  bool has_lost_ = false;     // a world, of which broken_ tells
  bool has_success_ = false;  // of a host in the present world
  bool tell_all_ = false;
  std::string failed_id_;          // whose failure broke the world
  std::vector<WorldBroken> lost_;  // of the last world's hosts
  /// By what the last world ended. A host can know of one whose coordinator was
  /// here before this one.
  WorldBroken broken_{WorldBroken::Change::vanished, "where the hosts meet"};
  JobClosed closed_{0};
  Actions actions_;
};

}  // namespace launcher
