#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>

namespace launcher {

/// A signal that was handed to a process which reads its signals from a
/// descriptor, until it has read it. While the kernel holds the process (in a
/// write to a file server that does not answer) or it is stopped, the signal
/// stays pending, however long: that tells it from one that is merely at work.
///
/// It is looked at once a second, and looks are counted, not time: while the
/// machine sleeps nobody could have read it.
class PendingSignal {
 public:
  void hand_over(int number) {
    number_ = number;
    looks_ = 0;
  }

  /// There is something to look for.
  bool is_open() const { return number_ != 0; }
  int number() const { return number_; }

  /// @returns how many looks in a row have found it pending
  int look(bool is_pending);

 private:
  int number_ = 0;
  int looks_ = 0;
};

/// The signal waits for the process, by the text of its /proc/PID/status.
bool is_pending(const std::string& status, int number);

/// The same of a process; false where /proc does not show it.
bool is_pending(pid_t pid, int number);

}  // namespace launcher
