#pragma once

#include <chrono>
#include <deque>
#include <optional>

namespace launcher {

/// Rules for counting and delaying restarts, in addition to --max-restarts.
struct RestartRules {
  /// --restart-window: only restarts within this last time count.
  std::optional<std::chrono::milliseconds> window{};
  /// --restart-delay: before the first restart; doubles with each further
  /// restart.
  std::chrono::milliseconds first_delay{0};
  std::chrono::milliseconds longest_delay{0};
};

/// Counts restarts. Pure: the caller passes the time.
class RestartBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// @param most maximum number of restarts, in total or within the window
  RestartBudget(int most, const RestartRules& rules)
      : most_(most), rules_(rules) {}

  /// Returns the earliest time at which a failure may be followed by a restart,
  /// if no other restart happens before; std::nullopt: never.
  ///
  /// @param restarts number of restarts of the job so far, as counted by the
  ///   rendezvous
  std::optional<Time> next_allowed(int restarts, Time now) const;

  /// Returns whether a failure may be followed by a restart now.
  bool allows(int restarts, Time now) const;

  /// Records a restart and returns the delay before it. Restarts that have left
  /// the window no longer increase the delay.
  std::chrono::milliseconds spend(Time now);

 private:
  int counted(Time now) const;

  int most_;
  RestartRules rules_;
  std::deque<Time> restarts_;
};

}  // namespace launcher
