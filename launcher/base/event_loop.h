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

/// One epoll over everything ddprun waits for. It owns time: the objects it
/// watches are passive. Handlers run on the thread that calls run_once(), in
/// the order in which the kernel saw the events.
class EventLoop {
 public:
  using Handler = std::function<void()>;
  using Token = uint64_t;  ///< of one watch; 0 is none

  EventLoop();

  /// Calls `handler` whenever `fd` is ready for `events` (EPOLLIN, EPOLLOUT).
  Token watch(int fd, uint32_t events, Handler handler);

  /// Calls `handler` at the end of every round: for what is collected during
  /// one and done once, such as writing.
  Token watch_rounds(Handler handler);

  /// Ends a watch, also from within a handler. Does nothing for 0. To be called
  /// before the descriptor is closed.
  void unwatch(Token token);

  /// Calls `handler` once, after `delay`, unless the timer of this name is set
  /// again or disarmed before. See Timers.
  void arm_timer(const std::string& name,
                 std::chrono::milliseconds delay,
                 Handler handler);
  /// The same at a time, at once where that is over; disarms where there is
  /// none.
  void arm_timer_at(const std::string& name,
                    std::optional<Timers::Time> deadline,
                    Handler handler);
  void disarm_timer(const std::string& name);

  /// Waits for at least one event or timer, and handles all that are there.
  void run_once();

 private:
  struct Watch {
    int fd;
    Handler handler;
  };

  void set_alarm();

  Fd epoll_;
  Fd alarm_;  // wakes epoll when the next timer is due
  Timers timers_;
  Token last_token_ = 0;
  std::unordered_map<Token, Watch> watches_;
  std::map<Token, Handler> round_handlers_;
};

}  // namespace launcher
