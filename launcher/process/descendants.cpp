#include "launcher/process/descendants.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "launcher/text_file.h"

namespace launcher {
namespace {

/// 0 when the process is gone.
pid_t parent_of(pid_t pid) {
  // "pid (name) state ppid ...": the name may hold anything, also ")".
  const std::string stat = read_text("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) {
    return 0;
  }
  std::istringstream rest(stat.substr(name_end + 1));
  char state = 0;
  pid_t parent = 0;
  rest >> state >> parent;
  return parent;
}

}  // namespace

void become_subreaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

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

std::vector<pid_t> own_children() {
  const pid_t self = ::getpid();
  std::vector<pid_t> result;
  for (const pid_t pid : all_processes()) {
    if (parent_of(pid) == self) {
      result.push_back(pid);
    }
  }
  return result;
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ||
         errno != ECHILD;
}

void reap_orphans(const std::function<bool(pid_t)>& is_worker) {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0 || is_worker(info.si_pid)) {
      return;
    }
    ::waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG);
  }
}

void signal_child(pid_t child, int number) {
  ::kill(::getpgid(child) == child ? -child : child, number);
}

}  // namespace launcher
