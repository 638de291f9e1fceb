#pragma once

#include <sys/types.h>

#include <csignal>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {

/// How `fork_child` makes a process.
struct ForkOptions {
  /// The signal that the kernel sends to the child when the thread that made
  /// it ends; 0: none.
  int death_signal = SIGKILL;
  /// Whether the child's end sends SIGCHLD. Without the signal, `wait(-1)` in
  /// another part of the program does not see the child; `waitpid(pid, ...,
  /// __WCLONE)` reaps it.
  bool signals_end = true;
  /// Folder of the cgroup (version 2) in which the child starts; -1: the
  /// parent's. Moving a process to a cgroup later takes the kernel 15 ms.
  int cgroup_fd = -1;
};

/// Forks this process. No other function of the project calls fork() or
/// clone().
///
/// With `cgroup_fd` or without `signals_end`, glibc does not know of the fork:
/// in a program of several threads the child may make only async-signal-safe
/// calls. If the kernel or a sandbox does not offer clone3(), the child starts
/// in the parent's cgroup.
///
/// @returns 0 in the child, and the child's pid in the parent. If the parent
///   has ended in the meantime, the child exits with 127 instead, unless
///   `death_signal` is 0.
/// @throws std::system_error when no process can be made.
pid_t fork_child(const ForkOptions& options = {});

/// Opens a descriptor that is readable when the child has ended.
/// @returns none, and errno, when a sandbox or a kernel before Linux 5.3
///   refuses, or too many files are open.
FileDescriptor open_pidfd(pid_t child);

}  // namespace ddp::detail
