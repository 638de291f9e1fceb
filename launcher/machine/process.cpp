#include "launcher/machine/process.h"

#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>

#include "launcher/machine/descendants.h"

namespace launcher {
namespace {

// Kernel headers may be older than the kernel.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif

struct CloneArguments {  // struct clone_args of Linux 5.7
  uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size,
      tls, set_tid, set_tid_size, cgroup;
};

[[noreturn]] void report_failure(const ProcessSpec& spec,
                                 int error,
                                 bool of_binding = false) {
  const ExecFailure failure{error, of_binding};
  [[maybe_unused]] const ssize_t written =
      ::write(spec.error_fd, &failure, sizeof(failure));
  ::_exit(127);
}

/// Makes only async-signal-safe calls, as fork_into() requires.
[[noreturn]] void run_child(const ProcessSpec& spec, pid_t parent) {
  const Execution& execution = *spec.execution;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(127);  // ddprun died before prctl()
  }
  ::setsid();
  spec.settings->restore();
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (const int error = execution.cpus().bind()) {
    report_failure(spec, error, true);
  }
  // Descriptors 0 to 2 are always open, so the other ones are above 2 and no
  // dup2() overwrites the source of a later one.
  ::dup2(spec.stdin_fd, STDIN_FILENO);
  ::dup2(spec.stdout_fd, STDOUT_FILENO);
  ::dup2(spec.stderr_fd, STDERR_FILENO);
  // The path contains a slash, so PATH is not searched. A script without #! is
  // run by /bin/sh, as in a shell.
  ::execve(execution.path(), execution.argv(), execution.environment());
  if (errno == ENOEXEC) {
    ::execve(kShell, execution.script_argv(), execution.environment());
  }
  report_failure(spec, errno);
}

/// Forks directly into a cgroup: moving a process later takes the kernel 15 ms.
/// glibc does not know about this fork, so the child may make only
/// async-signal-safe calls.
///
/// @returns the pid, 0 in the child, or -1 if the kernel or a sandbox does not
///   support it
pid_t fork_into(int cgroup_fd) {
  CloneArguments arguments{};
  arguments.flags = CLONE_INTO_CGROUP;
  arguments.exit_signal = SIGCHLD;
  arguments.cgroup = static_cast<uint64_t>(cgroup_fd);
  return static_cast<pid_t>(
      ::syscall(SYS_clone3, &arguments, sizeof(arguments)));
}

pid_t start(const ProcessSpec& spec) {
  const pid_t parent = ::getpid();
  pid_t pid = spec.cgroup_fd >= 0 ? fork_into(spec.cgroup_fd) : -1;
  if (pid < 0) {
    pid = ::fork();
  }
  if (pid == 0) {
    run_child(spec, parent);
  }
  return check(pid, "cannot start a process");
}

/// Returns an empty Fd if the kernel or a sandbox does not support pidfds.
/// Kills the process and throws std::system_error if no descriptor is left.
Fd open_pidfd(pid_t pid) {
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd && (errno == EMFILE || errno == ENFILE)) {
    const int error = errno;
    ::kill(pid, SIGKILL);
    retry_interrupted([&] { return ::waitpid(pid, nullptr, 0); });
    errno = error;
    check(-1, "pidfd_open");
  }
  return pidfd;
}

}  // namespace

Process::Process(const ProcessSpec& spec)
    : pid_(start(spec)), pidfd_(open_pidfd(pid_)) {}

std::optional<ExitStatus> Process::peek() const {
  return peek_child(pid_);
}

void Process::reap() {
  siginfo_t info{};
  retry_interrupted(
      [&] { return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED); });
  is_reaped_ = true;
}

void Process::signal_group(int number) const {
  siginfo_t info{};
  const bool is_ours =
      !is_reaped_ || ::waitid(P_PGID,
                              static_cast<id_t>(pid_),
                              &info,
                              WEXITED | WNOHANG | WNOWAIT) == 0;
  if (is_ours && ::kill(-pid_, number) != 0 && !is_reaped_) {
    ::kill(pid_, number);  // the child has not called setsid() yet
  }
}

void Process::kill_all() const {
  if (!is_reaped_) {
    kill_descendants(pid_);
  }
  signal_group(SIGKILL);
}

}  // namespace launcher
