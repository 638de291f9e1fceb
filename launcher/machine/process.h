#pragma once

#include <sys/types.h>

#include <optional>

#include "launcher/base/exit_status.h"
#include "launcher/base/fd.h"
#include "launcher/machine/caller_settings.h"
#include "launcher/machine/execution.h"

namespace launcher {

/// Arguments for starting a worker process. The caller keeps the descriptors.
struct ProcessSpec {
  const Execution* execution = nullptr;
  /// Settings of ddprun's caller, restored in the child; null: the child
  /// inherits ddprun's.
  const CallerSettings* settings = nullptr;
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int error_fd = -1;    ///< close-on-exec; receives an ExecFailure
  int cgroup_fd = -1;   ///< folder of its cgroup; -1: ddprun's cgroup
  int watcher_fd = -1;  ///< see Watcher; -1: none
};

/// Message in the error pipe if a program could not be started.
struct ExecFailure {
  int error;        ///< errno
  bool of_binding;  ///< CPU binding failed; else exec
};

/// A child process that leads its own session and process group. The kernel
/// kills it when ddprun dies. Passive; the owner must call reap().
class Process {
 public:
  /// Starts the program. To be called from the main thread, which must live as
  /// long as ddprun: the kernel ties the child's life to the thread.
  ///
  /// As from a shell, the program starts with no blocked signals and default
  /// handlers; signals that ddprun's caller ignored stay ignored. Resource
  /// limits are the caller's.
  ///
  /// @throws std::system_error if no process can be created. If the program
  ///   cannot be executed, the error is written to error_fd instead
  explicit Process(const ProcessSpec& spec);

  pid_t pid() const { return pid_; }
  /// Descriptor that becomes readable when the process has ended; -1 if the
  /// kernel or a sandbox does not support pidfds. Then only SIGCHLD and peek()
  /// report the end.
  int pidfd() const { return pidfd_.get(); }

  /// Returns how the process ended; std::nullopt while it runs. Its pid stays
  /// reserved.
  std::optional<ExitStatus> peek() const;

  /// Frees the pid of the process. Blocks until the process has ended.
  void reap();
  bool is_reaped() const { return is_reaped_; }

  /// Returns whether a process of its group is there, ended or not.
  bool has_group() const;

  /// Signals the process and its group, or the rest of the group. Never signals
  /// an unrelated process: the group's id cannot be reused while one of our
  /// children is in it.
  void signal_group(int number) const;

  /// Sends SIGKILL to its group and, unless it is reaped, to all its
  /// descendants.
  void kill_all() const;

 private:
  pid_t pid_;
  Fd pidfd_;
  bool is_reaped_ = false;
};

}  // namespace launcher
