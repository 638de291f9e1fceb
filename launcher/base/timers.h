#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace launcher {

/// Timers with names; each fires once, at its deadline. Pure: has no clock, the
/// caller passes the time.
///
/// Example:
/// @code
///   Timers timers;
///   timers.arm("grace", now + 30s, [] { kill_all(); });
///   timers.run_due(now + 31s);  // calls kill_all()
/// @endcode
class Timers {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using Handler = std::function<void()>;

  /// Arms a timer and replaces an armed timer of the same name.
  void arm(const std::string& name, Time deadline, Handler handler);

  /// Removes a timer. Does nothing if there is none of this name.
  void disarm(const std::string& name);

  bool is_armed(const std::string& name) const;

  /// Returns the earliest deadline; std::nullopt if no timer is armed.
  std::optional<Time> next_deadline() const;

  /// Calls the handlers of all timers that are due at `now`, ordered by
  /// deadline, and by the order of arm() for equal deadlines. A handler may arm
  /// and disarm timers; a later run_due() calls the timers that it arms, even
  /// if they are due.
  void run_due(Time now);

 private:
  struct Timer {
    std::string name;
    Time deadline;
    uint64_t number;  // counts the calls of arm()
    Handler handler;
  };

  std::vector<Timer> timers_;  // by deadline, then by number
  uint64_t last_number_ = 0;
};

}  // namespace launcher
