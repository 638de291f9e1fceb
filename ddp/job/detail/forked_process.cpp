#include "ddp/job/detail/forked_process.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <vector>

#include <c10/util/Exception.h>

#include "ddp/base/child_process.h"
#include "ddp/job/error_text.h"

namespace ddp::detail {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kKillPatience{10'000};

/// Kills a child that cannot be watched.
FileDescriptor pidfd_of(pid_t pid) {
  auto pidfd = open_pidfd(pid);
  if (!pidfd) {
    const int error = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    errno = error;
  }
  check(pidfd.get(), "pidfd_open (needs Linux 5.3)");
  return pidfd;
}

void flush_streams() {
  std::cout.flush();
  std::cerr.flush();
  std::clog.flush();
  std::fflush(nullptr);
}

void write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written <= 0) {
      return;  // out of memory; the exit code still reports the failure
    }
    data += written;
    size -= static_cast<size_t>(written);
  }
}

void write_report(int fd, const std::string& text) {
  const auto time = Clock::now();
  write_all(fd, reinterpret_cast<const char*>(&time), sizeof(time));
  write_all(fd, text.data(), text.size());
}

std::optional<ProcessEnd::Exception> read_report(int fd) {
  ProcessEnd::Exception report;
  if (::pread(fd, &report.time, sizeof(report.time), 0) !=
      static_cast<ssize_t>(sizeof(report.time))) {
    return std::nullopt;
  }
  report.text.resize(static_cast<size_t>(::lseek(fd, 0, SEEK_END)) -
                     sizeof(report.time));
  const ssize_t size =
      ::pread(fd, report.text.data(), report.text.size(), sizeof(report.time));
  report.text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return report;
}

/// The child's steady clock is the same as the parent's.
int run(const std::function<int()>& body,
        ForkedProcess::Tell tell,
        int report) {
  try {
    return body();
  } catch (...) {
    const auto text = text_of(std::current_exception());
    write_report(report, text);
    if (tell != nullptr) {
      tell(text);
    }
    return 1;
  }
}

/// Blocks all signals in its scope. No signal may reach the child before it has
/// dropped this program's handlers.
class SignalsWait {
 public:
  SignalsWait() {
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsWait() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;

  void terminate_by_default() {
    ::signal(SIGTERM, SIG_DFL);
    ::sigdelset(&before_, SIGTERM);
  }

 private:
  sigset_t before_{};
};

[[noreturn]] void be_child(const std::function<int()>& body,
                           ForkedProcess::Tell tell,
                           int report) {
  const int code = run(body, tell, report);
  flush_streams();
  ::_exit(code);
}

pid_t fork_to_run(const std::function<int()>& body,
                  ForkedProcess::Tell tell,
                  int report) {
  flush_streams();  // or the child would print it, too
  const pid_t pid = [] {
    SignalsWait wait;
    const pid_t child = ddp::detail::fork_child();
    if (child == 0) {
      wait.terminate_by_default();
    }
    return child;
  }();
  if (pid == 0) {
    be_child(body, tell, report);
  }
  return pid;
}

}  // namespace

ForkedProcess::ForkedProcess(const std::function<int()>& body, Tell tell)
    : report_(check(::memfd_create("ddp_report", MFD_CLOEXEC), "memfd_create")),
      pid_(fork_to_run(body, tell, report_.get())),
      pidfd_(pidfd_of(pid_)) {}

ForkedProcess::~ForkedProcess() {
  if (is_reaped_) {
    return;
  }
  signal(SIGKILL);
  pollfd ended{pidfd_.get(), POLLIN, 0};
  retry_interrupted([&] {
    return ::poll(&ended, 1, static_cast<int>(kKillPatience.count()));
  });
  ::waitpid(pid_, nullptr, WNOHANG);
}

void ForkedProcess::signal(int number) const {
  if (!is_reaped_) {
    ::kill(pid_, number);
  }
}

std::optional<ProcessEnd> ForkedProcess::reap() {
  siginfo_t info{};
  const int result = retry_interrupted([&] {
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG);
  });
  is_reaped_ = result < 0 || info.si_pid != 0;
  TORCH_CHECK(result == 0,
              "Expected to learn how process ",
              pid_,
              " ended, but this program has waited for it elsewhere; let its "
              "SIGCHLD handler wait for its own children alone");
  if (!is_reaped_) {
    return std::nullopt;
  }
  ProcessEnd end;
  (info.si_code == CLD_EXITED ? end.exit_code : end.signal) = info.si_status;
  end.exception = read_report(report_.get());
  return end;
}

bool wait_for_any(const std::deque<ForkedProcess>& processes,
                  milliseconds timeout) {
  std::vector<pollfd> running;
  for (const auto& process : processes) {
    if (!process.is_reaped()) {
      running.push_back({process.pidfd_.get(), POLLIN, 0});
    }
  }
  const auto patience =
      std::clamp<milliseconds::rep>(timeout.count(), 0, INT_MAX);
  return ::poll(running.data(), running.size(), static_cast<int>(patience)) > 0;
}

}  // namespace ddp::detail
