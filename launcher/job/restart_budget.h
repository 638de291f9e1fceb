#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/process/exit_status.h"

namespace launcher {

/// Which failures are followed by a restart, and when; beside --max-restarts.
struct RestartRules {
  /// --restart-window: only the restarts of this last time count.
  std::optional<std::chrono::milliseconds> window{};
  /// --restart-delay: before the first restart; each that follows doubles it.
  std::chrono::milliseconds first_delay{0};
  std::chrono::milliseconds longest_delay{0};
  std::vector<int> final_codes{};  ///< exit codes that no restart follows
};

/// Counts restarts. Pure: the time is told.
class RestartBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// @param most restarts, of all or of those in the window
  RestartBudget(int most, RestartRules rules)
      : most_(most), rules_(std::move(rules)) {}

  /// A failure may be followed by a restart.
  ///
  /// @param restarts of the job so far, as the rendezvous counts them
  bool allows(const ExitStatus& failure, int restarts, Time now) const;

  /// Notes a restart, and says how long to wait before it. What has left the
  /// window no longer makes the delay longer.
  std::chrono::milliseconds spend(Time now);

 private:
  int counted(Time now) const;

  int most_;
  RestartRules rules_;
  std::deque<Time> restarts_;
};

}  // namespace launcher
