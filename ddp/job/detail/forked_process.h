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
  int signal = 0;  ///< 0 if the child exited
  std::optional<Exception> exception;
};

/// A child made by fork() that runs a function and then ends. Destructors of
/// static objects and atexit functions of the program do not run in the child.
///
/// In the child SIGTERM has its default action. The child gets SIGKILL when the
/// thread that created it ends.
class ForkedProcess {
 public:
  using Tell = void (*)(const std::string& text) noexcept;

  /// @param body  its result is the child's exit code. An exception makes the
  ///   exit code 1, and `reap` reports it.
  /// @param tell  called in the child with the exception's text, after its time
  ///   was recorded, so that failures it causes in other processes have a later
  ///   time.
  /// @throws std::system_error if no process can be created.
  explicit ForkedProcess(const std::function<int()>& body, Tell tell = nullptr);
  /// Sends SIGKILL unless the child has been reaped, and waits for its end, at
  /// most ten seconds: the kernel may hold a process that waits for a device.
  ~ForkedProcess();
  ForkedProcess(const ForkedProcess&) = delete;
  ForkedProcess& operator=(const ForkedProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool is_reaped() const { return is_reaped_; }
  void signal(int number) const;

  /// Returns how the child ended, or std::nullopt while it runs. After a result
  /// the kernel may reuse the pid.
  /// @throws c10::Error if another part of the program has waited for the
  ///   child.
  std::optional<ProcessEnd> reap();

 private:
  friend bool wait_for_any(const std::deque<ForkedProcess>& processes,
                           std::chrono::milliseconds timeout);

  FileDescriptor report_;  // memory file shared with the child
  pid_t pid_;
  FileDescriptor pidfd_;  // readable once the child has ended
  bool is_reaped_ = false;
};

/// Waits until a child that has not been reaped ends. Returns false after
/// `timeout`, or earlier if a signal interrupts the wait.
bool wait_for_any(const std::deque<ForkedProcess>& processes,
                  std::chrono::milliseconds timeout);

}  // namespace ddp::detail
