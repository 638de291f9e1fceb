#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "launcher/base/event_loop.h"
#include "launcher/base/fd.h"

namespace launcher {

/// A call that may block for long and knows no time-out (a name service that
/// does not answer), in a child process: ddprun has one thread, which waits for
/// everything. See fork_helper().
///
/// Example:
/// @code
///   BackgroundCall call(loop, [] { return slow_text(); },
///                       [](const auto& text) { use(text); });
/// @endcode
class BackgroundCall {
 public:
  /// Gets what the call returned; nothing when it threw or was killed.
  using Handler = std::function<void(const std::optional<std::string>& result)>;

  /// @param call runs in the child: what it changes is lost
  /// @param handler is called by the loop; may destroy this object
  /// @throws std::system_error when no process can be made
  BackgroundCall(EventLoop& loop,
                 const std::function<std::string()>& call,
                 Handler handler);
  /// Gives up a call that has not returned.
  ~BackgroundCall();
  BackgroundCall(const BackgroundCall&) = delete;
  BackgroundCall& operator=(const BackgroundCall&) = delete;

 private:
  void read();

  EventLoop& loop_;
  Handler handler_;
  pid_t pid_ = 0;  // 0: reaped
  Fd result_;
  EventLoop::Token watch_ = 0;
  std::string text_;
};

}  // namespace launcher
