#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <vector>

#include "launcher/base/fd.h"

namespace launcher {

/// While it lives, signals to ddprun arrive as data on a file descriptor: no
/// handler runs and none is lost. The destructor restores what was before.
///
/// A signal that was ignored when ddprun was started (nohup, a background job
/// of a script) stays ignored, for the workers too.
class SignalScope {
 public:
  /// @param signals those to receive; SIGCHLD comes with them
  explicit SignalScope(const std::vector<int>& signals);
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  /// Readable when a signal is there. A child has the same descriptor, and
  /// reads its own signals from it.
  int fd() const { return fd_.get(); }

  /// Calls `handle` with each signal that is there, and the process that sent
  /// it (0: the kernel).
  void read(const std::function<void(int number, pid_t sender)>& handle) const;

 private:
  sigset_t old_mask_{};
  Fd fd_;
};

/// Signals that end a program but ask for nothing that ddprun knows: SIGUSR1,
/// SIGALRM, SIGXCPU, real-time signals... They are for the workers.
std::vector<int> signals_of_programs();

/// Stops this process as Ctrl-Z does. Returns when it is continued; at once
/// where no shell could continue it.
void stop_as_by_keyboard();

}  // namespace launcher
