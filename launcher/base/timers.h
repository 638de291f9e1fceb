#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace launcher {

/// Several timers, each known by its name and due once, at its deadline. Pure
/// bookkeeping: it owns no clock, and is told the time.
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

  /// Sets a timer; one of this name that is already set is replaced.
  void arm(const std::string& name, Time deadline, Handler handler);

  /// Forgets a timer. Does nothing when there is none of this name.
  void disarm(const std::string& name);

  bool is_armed(const std::string& name) const;

  /// The earliest deadline; nothing when no timer is set.
  std::optional<Time> next_deadline() const;

  /// Calls the handlers of all timers that are due at `now`: in the order of
  /// their deadlines, those of one deadline in the order in which they were
  /// set. A handler may set and forget timers; what it sets is called by a
  /// later run_due(), however early it is due.
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
