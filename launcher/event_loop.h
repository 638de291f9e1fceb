#pragma once

#include <sys/epoll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include "launcher/fd.h"

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

  /// Ends a watch, also from within a handler. Does nothing for 0. To be called
  /// before the descriptor is closed.
  void unwatch(Token token);

  /// Calls the handler of set_timer_handler() once, after `delay`. There is one
  /// timer: setting it again replaces it.
  void arm_timer(std::chrono::milliseconds delay);
  void disarm_timer();
  void set_timer_handler(Handler handler) { on_timer_ = std::move(handler); }

  /// Waits for at least one event and handles all that are there.
  void run_once();

 private:
  struct Watch {
    int fd;
    Handler handler;
  };

  Fd epoll_;
  Fd timer_;
  Token last_token_ = 0;
  std::unordered_map<Token, Watch> watches_;
  Handler on_timer_;
};

}  // namespace launcher
