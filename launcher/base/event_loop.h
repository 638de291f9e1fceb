#pragma once

#include <sys/epoll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "launcher/base/fd.h"
#include "launcher/base/timers.h"

namespace launcher {

/// Event loop of ddprun: one epoll instance for all descriptors and timers.
/// Handlers run on the thread that calls run_once(), in the order in which the
/// kernel reports the events.
class EventLoop {
 public:
  using Handler = std::function<void()>;
  using Token = uint64_t;  ///< identifies one watch; 0: none

  EventLoop();

  /// Calls `handler` whenever `fd` is ready for `events` (EPOLLIN, EPOLLOUT).
  Token watch(int fd, uint32_t events, Handler handler);

  /// Calls `handler` at the end of every round, for work that is collected
  /// during a round, such as writing.
  Token watch_rounds(Handler handler);

  /// Ends a watch; may be called by any handler. Does nothing for 0. To be
  /// called before the descriptor is closed.
  void unwatch(Token token);

  /// Calls `handler` once, after `delay`, unless the timer of this name is
  /// armed again or disarmed before. See Timers.
  void arm_timer(const std::string& name,
                 std::chrono::milliseconds delay,
                 Handler handler);
  /// Arms a timer for a point in time; a past time fires immediately. Disarms
  /// the timer if `deadline` is std::nullopt.
  void arm_timer_at(const std::string& name,
                    std::optional<Timers::Time> deadline,
                    Handler handler);
  void disarm_timer(const std::string& name);

  /// Blocks until at least one event or timer is ready, and handles all that
  /// are ready.
  void run_once();

 private:
  struct Watch {
    int fd;
    Handler handler;
  };

  void set_alarm();

  Fd epoll_;
  Fd alarm_;  // wakes epoll for the next timer
  Timers timers_;
  Token last_token_ = 0;
  std::unordered_map<Token, Watch> watches_;
  std::map<Token, Handler> round_handlers_;
};

}  // namespace launcher
