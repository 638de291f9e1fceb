#pragma once

#include <csignal>
#include <functional>
#include <vector>

#include "launcher/base/fd.h"

namespace launcher {

/// Delivers signals to ddprun as data on a file descriptor: no handler runs and
/// no signal is lost. The destructor restores the previous signal mask.
///
/// A signal that was ignored when ddprun was started (nohup, a background job
/// of a script) stays ignored, also in the workers.
class SignalScope {
 public:
  /// @param signals to receive; SIGCHLD is always included
  explicit SignalScope(const std::vector<int>& signals);
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  /// Descriptor that is readable when a signal is pending.
  int fd() const { return fd_.get(); }

  /// Calls `handle` for each pending signal.
  void read(const std::function<void(int number)>& handle) const;

 private:
  sigset_t old_mask_{};
  Fd fd_;
};

/// Returns the signals that end a program by default and have no meaning for
/// ddprun: SIGUSR1, SIGALRM, SIGXCPU, real-time signals... They are meant for
/// the workers.
std::vector<int> signals_of_programs();

/// Stops this process as Ctrl-Z does. Returns when it is continued; immediately
/// if there is no shell that could continue it. A SIGCONT is pending then.
void stop_as_by_keyboard();

}  // namespace launcher
