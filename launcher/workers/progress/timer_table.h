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

/// A request of torch's FileTimerClient: a process sets or clears a named
/// timer.
struct TimerRequest {
  pid_t pid = 0;
  std::string scope;
  double expiration = 0;  ///< seconds since 1970; below 0: clears the timer
  int signal = 0;         ///< sent on expiry; 0 or less: none
};

/// Parses `{"version": 1, "pid": 7, "scope_id": "a", "expiration_time": 12.5,
/// "signal": 9}`. Returns std::nullopt for any other text.
std::optional<TimerRequest> parse_timer_request(std::string_view line);

/// Timers of an attempt's processes. Pure: the caller passes the time.
class TimerTable {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Applies a request.
  ///
  /// @param wall_time seconds since 1970, the clock of the request
  void apply(const TimerRequest& request, Time now, double wall_time);

  /// A timer that was not cleared before its deadline.
  struct Expired {
    pid_t pid;
    std::string scope;
    int signal;
    std::chrono::milliseconds after;  ///< time since the timer was set
  };
  /// Removes and returns expired timers, one per process: the first with a
  /// signal, otherwise the first. All timers of these processes are removed.
  std::vector<Expired> remove_expired(Time now);

  /// Returns the earliest deadline; std::nullopt without timers.
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
