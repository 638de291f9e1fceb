#include "launcher/process/descendants.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>

#include "launcher/fd.h"

namespace launcher {
namespace {

std::vector<pid_t> all_processes() {
  std::vector<pid_t> result;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"),
                                                   ::closedir);
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    const pid_t pid = static_cast<pid_t>(std::atol(entry->d_name));
    if (pid > 0) {
      result.push_back(pid);
    }
  }
  return result;
}

bool is_child(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID,
                  static_cast<id_t>(pid),
                  &info,
                  WEXITED | WNOHANG | WNOWAIT) == 0;
}

/// Its number is mostly a little above our own.
std::vector<pid_t> find_child() {
  constexpr pid_t kMostPid = 4 << 20;  // the kernel's PID_MAX_LIMIT
  pid_t pid = ::getpid();
  do {
    pid = pid < kMostPid ? pid + 1 : 1;
  } while (!is_child(pid) && pid != ::getpid());
  return pid != ::getpid() ? std::vector<pid_t>{pid} : std::vector<pid_t>();
}

ExitStatus status_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) {
    return {.code = info.si_status};
  }
  return {.signal = info.si_status};
}

}  // namespace

void become_subreaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

std::vector<pid_t> own_children() {
  std::vector<pid_t> children = all_processes();
  std::erase_if(children, [](pid_t pid) { return !is_child(pid); });
  if (children.empty() && has_children()) {
    return find_child();
  }
  return children;
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ||
         errno != ECHILD;
}

std::optional<ExitStatus> peek_child(pid_t child) {
  siginfo_t info{};
  check(
      ::waitid(
          P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT),
      "waitid");
  return info.si_pid != 0 ? std::optional(status_of(info)) : std::nullopt;
}

void reap_children(const std::function<bool(pid_t)>& is_kept) {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0 || is_kept(info.si_pid)) {
      return;
    }
    ::waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG);
  }
}

void signal_child(pid_t child, int number) {
  ::kill(::getpgid(child) == child ? -child : child, number);
}

}  // namespace launcher
