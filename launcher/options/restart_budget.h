#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <vector>

namespace launcher {

/// Which restarts count, and how long they wait; beside --max-restarts.
struct RestartRules {
  /// --restart-window: only the restarts of this last time count.
  std::optional<std::chrono::milliseconds> window{};
  /// --restart-delay: before the first restart; each that follows doubles it.
  std::chrono::milliseconds first_delay{0};
  std::chrono::milliseconds longest_delay{0};
};

/// Counts restarts. Pure: the time is told.
class RestartBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// @param most restarts, of all or of those in the window
  RestartBudget(int most, const RestartRules& rules)
      : most_(most), rules_(rules) {}

  /// From when on a failure may be followed by a restart, if none comes before;
  /// nothing: never.
  ///
  /// @param restarts of the job so far, as the rendezvous counts them
  std::optional<Time> next_allowed(int restarts, Time now) const;

  /// A failure may be followed by a restart now.
  bool allows(int restarts, Time now) const;

  /// Notes a restart, and says how long to wait before it. What has left the
  /// window no longer makes the delay longer.
  std::chrono::milliseconds spend(Time now);

  /// How long ago the restarts were that still matter, for another budget to
  /// go on with.
  std::vector<std::chrono::milliseconds> ages(Time now) const;
  void resume(const std::vector<std::chrono::milliseconds>& ages, Time now);

 private:
  int counted(Time now) const;

  int most_;
  RestartRules rules_;
  std::deque<Time> restarts_;
};

}  // namespace launcher
