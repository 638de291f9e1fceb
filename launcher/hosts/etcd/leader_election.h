#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ddp/base/backoff.h"
#include "launcher/hosts/etcd/call.h"
#include "launcher/hosts/etcd/job_state.h"
#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/hosts/protocol/waiting_news.h"
#include "launcher/options/rendezvous_config.h"

namespace launcher {

/// Elects the host that coordinates a job, as seen by one of its hosts. etcd
/// holds the address of the coordinator and the state of the job. Pure: answers
/// and time come in, calls go out; there are no sockets and no clock.
///
/// - seeking: reads etcd. If another host coordinates, follows it. If no host
///   does, campaigns: one transaction writes the address of this host and the
///   job's state, unless another host has written either since the read. An
///   existing address is never overwritten: a host that cannot reach the
///   coordinator waits for the end of its lease, because the coordinator's
///   group may still run.
///
/// - following: until the coordinator is lost (on_lost()). Until the
///   coordinator has answered, etcd is watched for another one.
///
/// - leading: renews the leases, checks that the address in etcd is still its
///   own, and saves the job's state. A group runs only under a lease. Renewals
///   are tried as long as the group could still end before the lease does; then
///   comes Fence, and the next group waits for a renewal, at most for
///   join_timeout. So two coordinators never have a group at the same time. If
///   the leases have run out and no other host took over, this host campaigns
///   again and goes on; otherwise it has lost the election.
///
/// A host that leaves keeps its address in etcd until its workers have ended.
///
/// A call ends before the next one begins, except that the next call replaces a
/// watch.
class LeaderElection {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    std::string id;    ///< of this ddprun
    std::string host;  ///< name of this host for messages
    std::string etcd;  ///< "etcd at host:port", for messages
    RendezvousTimeouts timeouts{};
    std::chrono::milliseconds lease{80'000};   ///< see lease_time()
    std::chrono::milliseconds ending{50'000};  ///< see ending_time()
  };

  /// Connect to the coordinator there.
  struct Follow {
    CoordinatorPlace place;
  };
  /// Coordinate the job, from this state.
  struct Lead {
    EtcdJobState state;
    std::string earlier;  ///< name of the previous coordinator's host, or empty
  };
  /// The group must end, because its lease may not be renewed in time.
  struct Fence {};
  /// Stop coordinating: another host coordinates.
  struct Resign {};
  /// etcd has the state in saved().
  struct Saved {};
  using Action = std::
      variant<EtcdCall, Follow, Lead, Fence, Resign, Saved, RendezvousAnswer>;
  using Actions = std::vector<Action>;

  explicit LeaderElection(Options options) : options_(std::move(options)) {}

  Actions begin(Time now);
  Actions on_answer(const EtcdAnswer& answer, Time now);
  /// The coordinator that this host follows has answered.
  void on_coordinator_answered();
  /// The coordinator that this host follows cannot be reached any more.
  Actions on_lost(Time now);
  /// Saves the state of the coordinator on this host, for the next coordinator.
  Actions save(const EtcdJobState& state, Time now);
  /// Takes no further part; this host's workers may still run.
  void leave();
  /// This host's workers have ended. Saves for the last time, and removes this
  /// host's address from etcd.
  Actions end(Time now);
  Actions on_time(Time now);

  std::optional<Time> next_deadline() const;

  bool is_leading() const { return phase_ == Phase::leading; }
  bool is_following() const { return phase_ == Phase::following; }
  /// Whether no request to etcd is left to do.
  bool is_over() const { return phase_ == Phase::over; }
  /// State of the job in etcd, if this host leads.
  const EtcdJobState& saved() const { return saved_; }

 private:
  enum class Phase { none, seeking, following, leading, over };
  using Outcome = EtcdAnswer::Outcome;

  void seek();
  Actions start_call(const EtcdCall& call);
  Actions start_call(EtcdCall::Kind kind);
  Actions on_failed_call(const EtcdAnswer& answer);
  Actions on_answered_call(const EtcdCall& call, const EtcdAnswer& answer);
  Actions follow_or_campaign(const EtcdAnswer& answer);
  Actions campaign_again_or_resign(const EtcdAnswer& answer);
  Actions campaign(const EtcdAnswer& seen, const EtcdJobState& state);
  void become_leader(const EtcdAnswer& answer);
  Actions perform_due();
  Actions fail(const std::string& text);
  std::string timeout_text() const;
  std::string news_text() const;
  Time fence_time() const {
    return renewed_ + options_.lease - options_.ending;
  }
  bool is_watching_lease() const {
    return phase_ == Phase::leading && !has_left_ && !is_fenced_;
  }
  bool has_unsaved() const { return !(state_ == saved_); }
  std::optional<Time> unsaved_limit() const;
  bool is_waiting() const;
  bool is_call_due() const;

  Options options_;
  Phase phase_ = Phase::none;
  Time now_{};
  std::optional<EtcdCall> open_call_;
  Time called_at_{};
  Time next_try_{};
  ddp::detail::Backoff backoff_{std::chrono::milliseconds(20),
                                std::chrono::milliseconds(500)};
  Time give_up_{};  // while is_waiting()
  WaitingNews news_;
  std::string trouble_;   // error of etcd since its last answer
  bool has_met_ = false;  // this host has led, or has found a coordinator
  bool has_followed_answered_ = false;  // the coordinator that is followed
  bool has_left_ = false;
  bool has_ended_ = false;

  std::string job_;                // id of the job's state; empty: not known
  int64_t followed_revision_ = 0;  // of the coordinator's key
  int64_t seen_revision_ = 0;      // of etcd, in its last answer
  std::string followed_host_;
  std::string earlier_host_;

  // If this host leads.
  EtcdJobState state_;    // latest state of the coordinator
  EtcdJobState saved_;    // state in etcd
  EtcdJobState sent_;     // state in the open call
  int64_t revision_ = 0;  // of this host's key
  EtcdLeases leases_;
  Time next_renewal_{};
  Time renewed_{};          // send time of the last renewal that succeeded
  bool is_fenced_ = false;  // Fence was sent since that renewal
  std::optional<Time> unsaved_since_;
};

}  // namespace launcher
