#include "ddp/base/child_process.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace ddp::detail {
namespace {

// Kernel headers may be older than the kernel.
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
constexpr uint64_t kCloneIntoCgroup = 0x200000000ULL;

struct CloneArguments {  // struct clone_args of Linux 5.7
  uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size,
      tls, set_tid, set_tid_size, cgroup;
};

/// @returns -1 when the kernel or a sandbox does not offer it.
pid_t fork_into_cgroup(const ForkOptions& options) {
  CloneArguments arguments{};
  arguments.flags = kCloneIntoCgroup;
  arguments.exit_signal = options.signals_end ? SIGCHLD : 0;
  arguments.cgroup = static_cast<uint64_t>(options.cgroup_fd);
  return static_cast<pid_t>(
      ::syscall(SYS_clone3, &arguments, sizeof(arguments)));
}

pid_t fork_without_signal() {
  return static_cast<pid_t>(::syscall(SYS_clone, 0UL, 0UL, 0UL, 0UL, 0UL));
}

}  // namespace

pid_t fork_child(const ForkOptions& options) {
  const pid_t parent = ::getpid();
  pid_t pid = options.cgroup_fd >= 0 ? fork_into_cgroup(options) : -1;
  if (pid < 0) {
    pid = options.signals_end ? ::fork() : fork_without_signal();
  }
  if (pid < 0) {
    // Not in the child: the text takes memory, and another thread may have held
    // the lock of malloc.
    check(pid, "cannot start a process");
  }
  if (pid == 0 && options.death_signal != 0) {
    ::prctl(PR_SET_PDEATHSIG, options.death_signal);
    if (::getppid() != parent) {
      ::_exit(127);  // the parent died before the line above
    }
  }
  return pid;
}

FileDescriptor open_pidfd(pid_t child) {
  return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
}

}  // namespace ddp::detail
