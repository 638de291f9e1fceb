#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/hosts/etcd/call.h"
#include "launcher/hosts/etcd/job_state.h"
#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/hosts/protocol/waiting_text.h"
#include "launcher/options/meeting.h"

namespace launcher {

/// Which host of a job coordinates it, by etcd, as one of its hosts sees it:
/// answers and time in, calls out. Pure: it has no sockets and no clock.
///
/// - seeking: reads etcd. Another coordinator is followed. Where etcd has none,
///   this host campaigns: one transaction writes its place and the job's
///   record, if nobody has written either since. A place that is there is never
///   overwritten: a host that cannot reach the coordinator waits for the end of
///   its lease, since the coordinator's group may still run.
///
/// - following: until the coordinator is lost (on_lost()). Before it has
///   answered, etcd is watched for another one.
///
/// - hosting: renews its leases, checks that its place is still its own, and
///   saves the record. A group runs only under a lease: while there is time for
///   the group to end before the lease does, renewals are tried; then comes
///   Fence, and the next group waits for a renewal, at most for join_timeout.
///   So no two coordinators have a group at a time. When its leases have run
///   out and nobody took over, it writes itself again and goes on; else it has
///   been deposed.
///
/// A host that leaves keeps its place until its workers have ended.
///
/// A call ends before the next begins, but for a watch, which the next one
/// replaces.
class LeaderElection {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    std::string id;    ///< of this ddprun
    std::string host;  ///< its name, for people
    std::string etcd;  ///< "etcd at host:port", for people
    RendezvousTimeouts patience{};
    std::chrono::milliseconds lease{80'000};   ///< see lease_time()
    std::chrono::milliseconds ending{50'000};  ///< see ending_time()
  };

  struct Follow {
    CoordinatorPlace place;
  };
  struct Host {
    EtcdJobState record;
    std::string earlier;  ///< host that coordinated before; empty: none
  };
  struct Fence {};   ///< the group must end: the lease may not be renewed
  struct Resign {};  ///< another one coordinates
  struct Saved {};   ///< see saved()
  using Action = std::
      variant<EtcdCall, Follow, Host, Fence, Resign, Saved, RendezvousAnswer>;
  using Actions = std::vector<Action>;

  explicit LeaderElection(Options options) : options_(std::move(options)) {}

  Actions begin(Time now);
  Actions on_answer(const EtcdAnswer& answer, Time now);
  /// The coordinator that is followed has answered.
  void on_heard();
  /// It cannot be reached any more.
  Actions on_lost(Time now);
  /// Of the coordinator here: what is to outlive it.
  Actions on_record(const EtcdJobState& record, Time now);
  /// This host takes no further part; its workers may still run.
  void leave();
  /// They have ended: saves for the last time, and makes room.
  Actions end(Time now);
  Actions on_time(Time now);

  std::optional<Time> next_deadline() const;

  bool is_hosting() const { return phase_ == Phase::hosting; }
  bool is_following() const { return phase_ == Phase::following; }
  /// Nothing is left to be done in etcd.
  bool is_over() const { return phase_ == Phase::over; }
  /// What etcd has of the coordinator here.
  const EtcdJobState& saved() const { return saved_; }

 private:
  enum class Phase { none, seeking, following, hosting, over };
  using Outcome = EtcdAnswer::Outcome;

  void seek();
  Actions ask(const EtcdCall& call);
  Actions ask_for(EtcdCall::Kind kind);
  Actions on_trouble(const EtcdAnswer& answer);
  Actions on_answered(const EtcdCall& call, const EtcdAnswer& answer);
  Actions consider(const EtcdAnswer& answer);
  Actions consider_own(const EtcdAnswer& answer);
  Actions campaign(const EtcdAnswer& seen, const EtcdJobState& record);
  void become_leader(const EtcdAnswer& answer);
  Actions act();
  Actions lose(const std::string& text);
  std::string late_text() const;
  std::string news_text() const;
  Time fence_time() const {
    return renewed_ + options_.lease - options_.ending;
  }
  bool is_watching_lease() const {
    return phase_ == Phase::hosting && !has_left_ && !is_fenced_;
  }
  bool has_unsaved() const { return !(record_ == saved_); }
  std::optional<Time> unsaved_limit() const;
  bool is_waiting() const;
  bool is_call_due() const;

  Options options_;
  Phase phase_ = Phase::none;
  Time now_{};
  std::optional<EtcdCall> asked_;
  Time asked_at_{};
  Time next_try_{};
  Time give_up_{};  // while is_waiting()
  WaitingNews news_;
  std::string trouble_;  // with etcd, since the last answer
  bool was_reached_ = false;
  bool was_heard_ = false;  // the coordinator that is followed
  bool has_left_ = false;
  bool has_ended_ = false;

  std::string job_;       // of the record; empty: not known yet
  int64_t followed_ = 0;  // the revision of the coordinator's key
  std::string followed_host_;
  std::string earlier_host_;

  // Of the coordinator here.
  EtcdJobState record_;
  EtcdJobState saved_;
  EtcdJobState sent_;
  int64_t revision_ = 0;  // of our own key
  EtcdLeases leases_;
  Time next_renewal_{};
  Time renewed_{};          // when the last renewal that came was sent
  bool is_fenced_ = false;  // since then
  std::optional<Time> unsaved_since_;
};

}  // namespace launcher
