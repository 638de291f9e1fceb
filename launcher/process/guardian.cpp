#include "launcher/process/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "launcher/process/descendants.h"
#include "launcher/process/job_cgroup.h"
#include "launcher/text_file.h"

namespace launcher {
namespace {

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

bool carries(pid_t pid, const std::string& mark) {
  const std::string path = "/proc/" + std::to_string(pid) + "/environ";
  // Entries end with a NUL.
  const std::string text = '\0' + read_text(path);
  return text.find('\0' + mark) != std::string::npos;
}

/// True when there was such a process.
bool kill_marked(const std::string& mark) {
  constexpr int kPatienceMs = 1000;
  bool found = false;
  for (const pid_t pid : all_processes()) {
    if (!carries(pid, mark)) {
      continue;
    }
    const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process || !carries(pid, mark)) {  // is it still the same one?
      continue;
    }
    found = true;
    ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
    pollfd end{process.get(), POLLIN, 0};
    ::poll(&end, 1, kPatienceMs);
  }
  return found;
}

void clean_up(const Guardian::Duty& duty) {
  constexpr int kMostRounds = 100;  // they may start others meanwhile
  JobCgroup::kill_cgroup(duty.cgroup);
  for (int round = 0; round < kMostRounds && kill_marked(duty.mark); ++round) {
  }
  JobCgroup::await_empty(duty.cgroup);
  JobCgroup::remove_cgroup(duty.cgroup);
  if (!duty.directory.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(duty.directory, ignored);
  }
}

void close_from(int first) {
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, first, ~0U, 0) == 0) {
    return;
  }
#endif
  const int most = static_cast<int>(::sysconf(_SC_OPEN_MAX));
  for (int fd = first; fd < most; ++fd) {
    ::close(fd);
  }
}

/// In a job in a job, the outer guardian must not take the inner one for a
/// worker: it has work to do.
void forget_environment() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::memset(*entry, 0, std::strlen(*entry));
  }
}

[[noreturn]] void watch(const Guardian::Duty& duty, const Fd& lifeline) {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::setsid();
  forget_environment();
  ::prctl(PR_SET_NAME, "ddprun-guardian");
  // Nobody may wait for the end of a pipe because of us, nor for a file system.
  ::dup2(lifeline.get(), STDIN_FILENO);
  const int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, STDOUT_FILENO);
  ::dup2(null, STDERR_FILENO);
  close_from(STDERR_FILENO + 1);
  [[maybe_unused]] const int moved = ::chdir("/");
  char all_is_well = 0;
  if (::read(STDIN_FILENO, &all_is_well, 1) != 1) {
    clean_up(duty);
  }
  ::_exit(0);
}

}  // namespace

Guardian::Guardian(const Duty& duty) {
  Pipe pipe = make_pipe();
  // A fork whose end sends no SIGCHLD: waits for "any child" pass it over.
  pid_ = static_cast<pid_t>(
      check(static_cast<int>(::syscall(SYS_clone, 0UL, 0UL, 0UL, 0UL, 0UL)),
            "cannot start a process"));
  if (pid_ == 0) {
    pipe.write.reset();
    watch(duty, pipe.read);
  }
  lifeline_ = std::move(pipe.write);
}

Guardian::~Guardian() {
  [[maybe_unused]] const ssize_t written = ::write(lifeline_.get(), "x", 1);
  retry_interrupted([&] { return ::waitpid(pid_, nullptr, __WCLONE); });
}

}  // namespace launcher
