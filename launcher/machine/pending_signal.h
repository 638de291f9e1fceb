#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>

namespace launcher {

/// A signal sent to a process that reads its signals from a descriptor, until
/// the process has read it. While the kernel blocks the process (in a write to
/// a file server that does not answer) or the process is stopped, the signal
/// stays pending. This distinguishes a blocked process from a busy one.
///
/// The owner checks once a second. Time is measured by the number of checks, so
/// that time during which the machine sleeps does not count.
class PendingSignal {
 public:
  void set(int number) {
    number_ = number;
    looks_ = 0;
  }

  /// Returns whether a signal may be pending.
  bool is_open() const { return number_ != 0; }
  int number() const { return number_; }

  /// Records one check.
  ///
  /// @returns number of consecutive checks in which the signal was pending
  int record_check(bool is_pending);

 private:
  int number_ = 0;
  int looks_ = 0;
};

/// Returns whether the signal is pending, from the text of /proc/PID/status.
bool is_pending(const std::string& status, int number);

/// Returns whether the signal is pending for a process; false if /proc does not
/// show the process.
bool is_pending(pid_t pid, int number);

}  // namespace launcher
