#include "launcher/machine/process.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "ddp/base/child_process.h"
#include "launcher/machine/strays.h"
#include "launcher/machine/watcher.h"

namespace launcher {
namespace {

[[noreturn]] void report_failure(const ProcessSpec& spec,
                                 int error,
                                 bool of_binding = false) {
  const ExecFailure failure{error, of_binding};
  [[maybe_unused]] const ssize_t written =
      ::write(spec.error_fd, &failure, sizeof(failure));
  ::_exit(127);
}

/// Whether a file that the kernel does not execute is a binary, for another
/// machine. Async-signal-safe.
bool is_binary(const char* path) {
  char begin[SELFMAG]{};
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  return file >= 0 && ::read(file, begin, SELFMAG) == SELFMAG &&
         std::memcmp(begin, ELFMAG, SELFMAG) == 0;
}

/// Makes only async-signal-safe calls, as fork_child() into a cgroup requires.
[[noreturn]] void run_child(const ProcessSpec& spec) {
  const Execution& execution = *spec.execution;
  ::setsid();
  if (spec.watcher_fd >= 0) {
    add_own_group(spec.watcher_fd);  // SIGPIPE is still ignored
  }
  if (spec.settings != nullptr) {
    spec.settings->restore();
  }
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
    if (is_binary(execution.path())) {
      report_failure(spec, ENOEXEC);
    }
    ::execve(kShell, execution.script_argv(), execution.environment());
  }
  report_failure(spec, errno);
}

pid_t start(const ProcessSpec& spec) {
  const pid_t pid = ddp::detail::fork_child({.cgroup_fd = spec.cgroup_fd});
  if (pid == 0) {
    run_child(spec);
  }
  return pid;
}

/// Returns an empty Fd if the kernel or a sandbox does not support pidfds.
/// Kills the process and throws std::system_error if no descriptor is left.
Fd open_pidfd(pid_t pid) {
  Fd pidfd = ddp::detail::open_pidfd(pid);
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

bool Process::has_group() const {
  siginfo_t info{};
  return !is_reaped_ || ::waitid(P_PGID,
                                 static_cast<id_t>(pid_),
                                 &info,
                                 WEXITED | WNOHANG | WNOWAIT) == 0;
}

void Process::signal_group(int number) const {
  if (has_group() && ::kill(-pid_, number) != 0 && !is_reaped_) {
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
