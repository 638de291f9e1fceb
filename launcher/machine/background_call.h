#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "launcher/base/event_loop.h"
#include "launcher/base/fd.h"

namespace launcher {

/// Runs a function in a child process and delivers its result through the event
/// loop. For calls that may block for long without a time-out (a name service
/// that does not answer): ddprun has a single thread, which must not block. See
/// fork_helper().
///
/// Example:
/// @code
///   BackgroundCall call(loop, [] { return slow_text(); },
///                       [](const auto& text) { use(text); });
/// @endcode
class BackgroundCall {
 public:
  /// Receives the result; std::nullopt if the call threw or was killed.
  using Handler = std::function<void(const std::optional<std::string>& result)>;

  /// @param call runs in the child; its side effects on memory are lost
  /// @param handler is called by the loop; may destroy this object
  /// @throws std::system_error if no process can be created
  BackgroundCall(EventLoop& loop,
                 const std::function<std::string()>& call,
                 Handler handler);
  /// Kills the child if the call has not returned.
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
