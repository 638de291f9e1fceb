#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace launcher {

/// A line that torch's FileTimerClient writes: a process sets a timer of a name
/// of its own, or ends it.
struct TimerRequest {
  pid_t pid = 0;
  std::string scope;
  double expiration = 0;  ///< seconds since 1970; below 0: the timer ends
  int signal = 0;         ///< for the process when it expires; 0 or less: none
};

/// Of `{"version": 1, "pid": 7, "scope_id": "a", "expiration_time": 12.5,
/// "signal": 9}`; nothing when it is something else.
std::optional<TimerRequest> parse_timer_request(std::string_view line);

/// The timers of an attempt's processes. Pure: it is told the time.
class TimerTable {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// @param wall_time seconds since 1970, as the request counts
  void take(const TimerRequest& request, Time now, double wall_time);

  /// A timer that nobody has ended in time.
  struct Expired {
    pid_t pid;
    std::string scope;
    int signal;
    std::chrono::milliseconds after;  ///< it was set
  };
  /// Of each process with such timers the first one with a signal, else the
  /// first; all timers of these processes are forgotten.
  std::vector<Expired> take_expired(Time now);

  /// When the next one expires.
  std::optional<Time> next() const;

 private:
  struct Entry {
    Time deadline;
    Time since;
    int signal;
  };

  std::map<std::pair<pid_t, std::string>, Entry> timers_;
};

}  // namespace launcher
