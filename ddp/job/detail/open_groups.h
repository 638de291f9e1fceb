#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ddp/job/detail/wait_judge.h"
#include "ddp/job/monitored_backend.h"

namespace ddp::detail {

/// The open groups of a job. A group that has closed is forgotten. Thread-safe.
class OpenGroups {
 public:
  void add(c10::intrusive_ptr<MonitoredBackend> group);

  /// Returns the open groups in the order of `add`.
  std::vector<c10::intrusive_ptr<MonitoredBackend>> all() const;

  /// Records, in its scope, that the calling thread makes a group and waits for
  /// the other members.
  class MakingScope {
   public:
    MakingScope(OpenGroups& groups, const GroupMembers& members);
    ~MakingScope();
    MakingScope(const MakingScope&) = delete;
    MakingScope& operator=(const MakingScope&) = delete;

    /// Returns the error of `end_dead_waits`, or "".
    std::string error() const;

   private:
    OpenGroups& groups_;
    const std::string name_;
  };

  /// Returns the present state of this rank, without `leaves`.
  RankReport report() const;

  /// Aborts groups with work in progress half a second after a rank has left
  /// them. The delay gives messages that a peer sent before it left time to
  /// arrive. A group without work stays open: its completed collectives have
  /// their results, and further collectives throw.
  /// @returns true if this has to be called again soon.
  bool end_waits_for_departed();

  /// Aborts these groups, also groups that are being made, with the error.
  /// Returns true if this rank has one of them.
  bool end_dead_waits(const DeadWaits& dead);

  /// Returns true if a backward pass over one of the groups has begun and not
  /// ended.
  bool has_open_pass() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Making {
    std::string ranges;  ///< of the members
    Clock::time_point since;
    std::thread::id thread;
    std::string error;
  };

  mutable std::mutex mutex_;
  mutable std::vector<c10::intrusive_ptr<MonitoredBackend>> groups_;
  std::map<std::string, Making> makings_;                // by group name
  std::map<std::string, Clock::time_point> left_since_;  // by group name
};

}  // namespace ddp::detail
