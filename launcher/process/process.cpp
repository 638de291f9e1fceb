#include "launcher/process/process.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <new>

#include "launcher/process/descendants.h"

namespace launcher {
namespace {

// Kernel headers may be older than the kernel.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

/// What a child needs, where nobody else writes to it.
struct Child {
  ProcessSpec spec;
  pid_t parent;
};

[[noreturn]] void report_failure(const ProcessSpec& spec,
                                 int error,
                                 bool of_binding = false) {
  const ExecFailure failure{error, of_binding};
  raw_call(SYS_write,
           spec.error_fd,
           reinterpret_cast<long>(&failure),
           sizeof(failure));
  ::_exit(127);
}

int execute(const char* path, char* const* argv, char* const* environment) {
  return static_cast<int>(-raw_call(SYS_execve,
                                    reinterpret_cast<long>(path),
                                    reinterpret_cast<long>(argv),
                                    reinterpret_cast<long>(environment)));
}

/// Its calls are async-signal-safe and, where they can fail, leave errno alone:
/// it may be ddprun's.
[[noreturn]] void run_child(const Child& child) {
  const ProcessSpec& spec = child.spec;
  const Execution& execution = *spec.execution;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != child.parent) {
    ::_exit(127);  // ddprun died before the line above
  }
  ::setsid();
  spec.settings->restore();
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (const int error = execution.cpus().bind()) {
    report_failure(spec, error, true);
  }
  // They are open, and so are all below them.
  ::dup2(spec.stdin_fd, STDIN_FILENO);
  ::dup2(spec.stdout_fd, STDOUT_FILENO);
  ::dup2(spec.stderr_fd, STDERR_FILENO);
  // The path has a slash, so PATH is not searched; a script without #! runs by
  // /bin/sh as in a shell.
  int error =
      execute(execution.path(), execution.argv(), execution.environment());
  if (error == ENOEXEC) {
    error = execute(kShell, execution.script_argv(), execution.environment());
  }
  report_failure(spec, error);
}

pid_t start_beside(const Child& child) {
  // Above what the child has of its stack.
  char* place = child.spec.stack->begin() + ChildStack::kBytes - sizeof(Child);
  place -= reinterpret_cast<uintptr_t>(place) % alignof(Child);
  const auto size = static_cast<size_t>(place - child.spec.stack->begin());
  return clone_into(
      child.spec.cgroup_fd,
      *child.spec.stack,
      size,
      [](void* own) { run_child(*static_cast<const Child*>(own)); },
      new (place) Child(child));
}

pid_t start(const ProcessSpec& spec) {
  const Child child{spec, ::getpid()};
  pid_t pid = -1;
  if (spec.cgroup_fd >= 0) {
    pid = spec.stack != nullptr && *spec.stack ? start_beside(child) : -1;
    pid = pid < 0 ? fork_into(spec.cgroup_fd) : pid;
  }
  if (pid < 0) {
    pid = ::fork();
  }
  if (pid == 0) {
    run_child(child);
  }
  return check(pid, "cannot start a process");
}

/// None where a sandbox forbids it.
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
    ::kill(pid_, number);  // it has not come to its setsid() yet
  }
}

void Process::kill_all() const {
  if (!is_reaped_) {
    kill_descendants(pid_);
  }
  signal_group(SIGKILL);
}

}  // namespace launcher
