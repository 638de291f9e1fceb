#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {

/// How a child ended.
struct ProcessEnd {
  /// An exception that left the child's function.
  struct Exception {
    std::string text;
    std::chrono::steady_clock::time_point time;
  };

  int exit_code = 0;
  int signal = 0;  ///< 0: it exited
  std::optional<Exception> exception;
};

/// A child made by fork() that runs a function and ends with it: none of this
/// program's destructors and atexit functions run there.
///
/// SIGTERM has its default action in the child, and SIGKILL comes to it when
/// the thread that made it ends.
class ForkedProcess {
 public:
  using Tell = void (*)(const std::string& text) noexcept;

  /// @param body  its result is the exit code; an exception is reported by
  ///   `reap` and makes it 1.
  /// @param tell  gets its text once it is noted: what others do about it comes
  ///   later, by the clock, too.
  /// @throws std::system_error when no process can be made.
  explicit ForkedProcess(const std::function<int()>& body, Tell tell = nullptr);
  /// SIGKILL unless it has been reaped; waits for the end, but not forever: the
  /// kernel may hold a process that waits for a device.
  ~ForkedProcess();
  ForkedProcess(const ForkedProcess&) = delete;
  ForkedProcess& operator=(const ForkedProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool is_reaped() const { return is_reaped_; }
  void signal(int number) const;

  /// How it ended; nothing while it runs. Once it has told the end, the pid is
  /// free for another process.
  /// @throws c10::Error when another part of the program has waited for it.
  std::optional<ProcessEnd> reap();

 private:
  friend bool wait_for_any(const std::deque<ForkedProcess>& processes,
                           std::chrono::milliseconds timeout);

  FileDescriptor report_;  // memory that the child shares
  pid_t pid_;
  FileDescriptor pidfd_;  // readable when the child has ended
  bool is_reaped_ = false;
};

/// Waits until a process that has not been reaped has ended. False when
/// `timeout` was over first, or earlier: a signal may end the wait.
bool wait_for_any(const std::deque<ForkedProcess>& processes,
                  std::chrono::milliseconds timeout);

}  // namespace ddp::detail
