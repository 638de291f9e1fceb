#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/coordinator/waiting_text.h"
#include "launcher/etcd/call.h"
#include "launcher/etcd/record.h"
#include "launcher/rendezvous/meeting.h"
#include "launcher/rendezvous/rendezvous.h"

namespace launcher {

/// Which host of a job coordinates it, by etcd, as one of its hosts sees it:
/// answers and time in, calls out. Pure: it has no sockets and no clock.
///
/// - seeking: reads etcd. Another coordinator is followed; where there is none,
///   or its host refuses connections, this host campaigns: it writes itself and
///   the record of the job, if nobody has written either since.
///
/// - following: until the coordinator is lost (on_lost()). Before it has
///   answered, etcd is watched for another one.
///
/// - hosting: renews its leases and saves the record. A group runs only under
///   a lease: while there is time for the group to end before the lease does,
///   renewals are tried; then comes Fence, and the next group waits for a
///   renewal, at most for join_timeout. So no two coordinators have a group at
///   a time. When its leases have run out and nobody took over, it writes
///   itself again and goes on; else it has been deposed.
///
/// - leaving: saves for the last time, and makes room.
///
/// A call ends before the next begins, but for a watch, which the next one
/// replaces.
class Succession {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    std::string id;    ///< of this ddprun
    std::string host;  ///< its name, for people
    std::string etcd;  ///< "etcd at host:port", for people
    Patience patience{};
    std::chrono::milliseconds lease{80'000};   ///< see lease_time()
    std::chrono::milliseconds ending{50'000};  ///< see ending_time()
  };

  struct Follow {
    CoordinatorPlace place;
  };
  struct Host {
    JobRecord record;
    std::string earlier;  ///< host that coordinated before; empty: none
  };
  struct Fence {};   ///< the group must end: the lease may not be renewed
  struct Resign {};  ///< another one coordinates
  struct Saved {};   ///< see saved()
  using Action = std::
      variant<EtcdCall, Follow, Host, Fence, Resign, Saved, RendezvousAnswer>;
  using Actions = std::vector<Action>;

  explicit Succession(Options options) : options_(std::move(options)) {}

  Actions begin(Time now);
  Actions on_answer(const EtcdAnswer& answer, Time now);
  /// The coordinator that is followed has answered.
  void on_heard();
  /// It cannot be reached any more.
  ///
  /// @param is_gone its host is there, and it is not
  Actions on_lost(bool is_gone, Time now);
  /// Of the coordinator here: what is to outlive it.
  Actions on_record(const JobRecord& record, Time now);
  Actions leave(Time now);
  Actions on_time(Time now);

  std::optional<Time> next_deadline() const;

  bool is_hosting() const { return phase_ == Phase::hosting; }
  bool is_following() const { return phase_ == Phase::following; }
  /// Nothing is left to be done in etcd.
  bool is_over() const { return phase_ == Phase::over; }
  /// What etcd has of the coordinator here.
  const JobRecord& saved() const { return saved_; }

 private:
  enum class Phase { none, seeking, following, hosting, leaving, over };
  using Outcome = EtcdAnswer::Outcome;

  static Actions both(Actions first, Actions second);
  Actions seek(Time now);
  Actions ask(const EtcdCall& call);
  Actions ask_for(EtcdCall::Kind kind);
  Actions campaign(int64_t coordinator_revision,
                   int64_t record_revision,
                   const JobRecord& record);
  Actions consider(const EtcdAnswer& answer);
  Actions check_own(const EtcdAnswer& answer);
  void take_office(const EtcdAnswer& answer);
  Actions on_no_answer(EtcdCall::Kind kind, const EtcdAnswer& answer);
  Actions on_answer_while_seeking(EtcdCall::Kind kind,
                                  const EtcdAnswer& answer);
  Actions on_answer_while_following(EtcdCall::Kind kind,
                                    const EtcdAnswer& answer);
  Actions on_answer_while_hosting(EtcdCall::Kind kind,
                                  const EtcdAnswer& answer);
  Actions act();
  Actions act_in_office();
  Actions end(const RendezvousAnswer& answer);
  std::string late_text() const;
  std::string news_text() const;
  std::chrono::milliseconds renewal() const;
  bool has_unsaved() const;
  bool is_under_lease() const;
  bool must_renew() const { return is_under_lease() && is_fenced_; }
  Time fence_time() const;
  bool is_waiting() const;

  Options options_;
  Phase phase_ = Phase::none;
  Time now_{};
  std::optional<EtcdCall> asked_;
  Time asked_at_{};
  Time next_try_{};
  Time give_up_{};  // seeking, or following one that has not answered
  WaitingNews news_;
  std::string trouble_;  // with etcd, since the last answer
  bool was_reached_ = false;
  bool was_heard_ = false;  // the coordinator that is followed

  std::string job_;       // of the record; empty: not known yet
  int64_t followed_ = 0;  // the revision of the coordinator's key
  int64_t gone_ = 0;      // of one that is gone for sure
  std::string followed_host_;
  std::string earlier_host_;

  // In office.
  JobRecord record_;
  JobRecord saved_;
  JobRecord sent_;
  int64_t office_ = 0;  // the revision of our own key
  EtcdLeases leases_;
  Time next_renewal_{};
  Time renewed_{};          // when the last renewal that came was sent
  bool is_fenced_ = false;  // since then
  std::optional<Time> unsaved_since_;
};

}  // namespace launcher
