#include "launcher/machine/descendants.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "launcher/base/fd.h"
#include "launcher/base/text_file.h"

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

/// Returns the parent's pid; 0 if the process is gone.
pid_t parent_of(pid_t pid, bool may_have_ended = true) {
  const std::string stat = read_text("/proc/" + std::to_string(pid) + "/stat");
  // The program's name, in brackets, may contain any characters.
  const size_t name_end = stat.rfind(") ");
  constexpr size_t kState = 4;  // length of ") S "
  const bool is_there =
      name_end != std::string::npos && name_end + kState < stat.size();
  return is_there && (may_have_ended || stat[name_end + 2] != 'Z')
             ? static_cast<pid_t>(std::atol(stat.c_str() + name_end + kState))
             : 0;
}

std::vector<pid_t> descendants_of(pid_t ancestor) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : all_processes()) {
    children.emplace(parent_of(pid), pid);
  }
  std::vector<pid_t> found{ancestor};
  for (size_t at = 0; at < found.size(); ++at) {
    const auto [begin, end] = children.equal_range(found[at]);
    std::transform(
        begin, end, std::back_inserter(found), [](const auto& entry) {
          return entry.second;
        });
  }
  found.erase(found.begin());
  return found;
}

bool is_child(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID,
                  static_cast<id_t>(pid),
                  &info,
                  WEXITED | WNOHANG | WNOWAIT) == 0;
}

/// Finds one child by trying pids. A child's pid is usually slightly above our
/// own.
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

void kill_descendants(pid_t ancestor) {
  // Repeat until no new process appears: a process may fork before it is
  // killed.
  std::set<pid_t> killed;
  for (bool is_new = true; is_new;) {
    is_new = false;
    for (const pid_t pid : descendants_of(ancestor)) {
      is_new |= killed.insert(pid).second;
      ::kill(pid, SIGKILL);
    }
  }
}

std::vector<pid_t> session_leaders_of(pid_t parent) {
  std::vector<pid_t> leaders = all_processes();
  std::erase_if(leaders, [parent](pid_t pid) {
    return parent_of(pid, /*may_have_ended=*/false) != parent ||
           ::getsid(pid) != pid;
  });
  return leaders;
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
