#pragma once

#include <sys/types.h>

#include <optional>

#include "launcher/base/exit_status.h"
#include "launcher/base/fd.h"
#include "launcher/machine/caller_settings.h"
#include "launcher/machine/execution.h"

namespace launcher {

/// What a worker process is made of. The descriptors stay the caller's.
struct ProcessSpec {
  const Execution* execution = nullptr;
  const CallerSettings* settings = nullptr;  ///< that it does not inherit
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int error_fd = -1;   ///< closed on exec; gets an ExecFailure if exec fails
  int cgroup_fd = -1;  ///< folder of the cgroup to start in; -1: ours
};

/// What comes through the error pipe when a program could not be started.
struct ExecFailure {
  int error;        ///< errno
  bool of_binding;  ///< to its CPUs; else of exec
};

/// A child process that leads its own session and process group, and that the
/// kernel kills when ddprun dies. Passive; whoever owns it must reap() it.
class Process {
 public:
  /// Starts the program. To be called from the main thread, which must live as
  /// long as ddprun: the kernel ties the child's life to the thread.
  ///
  /// Signals are as a shell would give them: none blocked, default handlers,
  /// but what ddprun's caller ignored is still ignored. Limits are the
  /// caller's.
  ///
  /// @throws std::system_error when no process can be made; a program that
  ///   cannot be executed shows on error_fd
  explicit Process(const ProcessSpec& spec);

  pid_t pid() const { return pid_; }
  /// Readable when the process has ended; -1 where a sandbox or an old kernel
  /// does not give it, and only SIGCHLD and peek() tell.
  int pidfd() const { return pidfd_.get(); }

  /// How the process ended; nothing while it lives. Its pid stays reserved.
  std::optional<ExitStatus> peek() const;

  /// Frees the pid of a process that has ended. Waits when it has not.
  void reap();
  bool is_reaped() const { return is_reaped_; }

  /// Signals the process and its group, or what is left of the group. Never
  /// reaches a stranger: the group's number cannot be in new use while one of
  /// our children is in it.
  void signal_group(int number) const;

  /// SIGKILL to its group; before its end, to all that it has started, too.
  void kill_all() const;

 private:
  pid_t pid_;
  Fd pidfd_;
  bool is_reaped_ = false;
};

}  // namespace launcher
