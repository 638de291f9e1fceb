#include "launcher/machine/strays.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "ddp/base/child_process.h"
#include "launcher/base/fd.h"
#include "launcher/base/text_file.h"
#include "launcher/machine/process_state.h"

namespace launcher {
namespace {

// Kernel headers may be older than the kernel.
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

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
pid_t parent_of(pid_t pid) {
  const std::string stat = read_text("/proc/" + std::to_string(pid) + "/stat");
  // The program's name, in brackets, may contain any characters.
  const size_t name_end = stat.rfind(") ");
  constexpr size_t kState = 4;  // length of ") S "
  return name_end != std::string::npos && name_end + kState < stat.size()
             ? static_cast<pid_t>(std::atol(stat.c_str() + name_end + kState))
             : 0;
}

/// Returns the parent of each descendant.
std::map<pid_t, pid_t> descendants_of(pid_t ancestor) {
  const Children children = all_children();
  std::map<pid_t, pid_t> parents;
  std::vector<pid_t> found{ancestor};
  for (size_t at = 0; at < found.size(); ++at) {
    const auto [begin, end] = children.equal_range(found[at]);
    for (auto entry = begin; entry != end; ++entry) {
      if (parents.emplace(entry->second, entry->first).second) {
        found.push_back(entry->second);
      }
    }
  }
  return parents;
}

/// Returns an empty Fd if the pid is another process's by now.
Fd open_child_of(pid_t parent, pid_t pid) {
  Fd process = ddp::detail::open_pidfd(pid);
  return parent_of(pid) == parent ? std::move(process) : Fd();
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ||
         errno != ECHILD;
}

bool is_child(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID,
                  static_cast<id_t>(pid),
                  &info,
                  WEXITED | WNOHANG | WNOWAIT) == 0;
}

ExitStatus status_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) {
    return {.code = info.si_status};
  }
  return {.signal = info.si_status};
}

}  // namespace

Strays::Strays() : has_earlier_(has_children()) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (has_earlier_) {
    for (const pid_t pid : all_processes()) {
      if (is_child(pid)) {
        earlier_.insert(pid);
      }
    }
  }
}

bool Strays::any() const {
  return has_children() && (!has_earlier_ || !find().empty());
}

bool Strays::is_stray(pid_t pid) const {
  return is_child(pid) && earlier_.count(pid) == 0 &&
         ::getsid(pid) != ::getsid(0);
}

std::vector<pid_t> Strays::find() const {
  std::vector<pid_t> strays = all_processes();
  const bool has_proc = !strays.empty();
  std::erase_if(strays, [this](pid_t pid) { return !is_stray(pid); });
  return strays.empty() && (!has_proc || !has_earlier_) && has_children()
             ? find_one()
             : strays;
}

/// Tries pids: a child's is usually slightly above our own.
std::vector<pid_t> Strays::find_one() const {
  constexpr pid_t kMostPid = 4 << 20;  // the kernel's PID_MAX_LIMIT
  pid_t pid = ::getpid();
  do {
    pid = pid < kMostPid ? pid + 1 : 1;
  } while (!is_stray(pid) && pid != ::getpid());
  return pid != ::getpid() ? std::vector<pid_t>{pid} : std::vector<pid_t>();
}

void Strays::reap(const std::function<bool(pid_t)>& is_kept) {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0 || is_kept(info.si_pid)) {
      return;
    }
    ::waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG);
    earlier_.erase(info.si_pid);
  }
}

Children all_children() {
  Children children;
  for (const pid_t pid : all_processes()) {
    const pid_t parent = parent_of(pid);
    const pid_t above = parent == ::getpid() ? ::getsid(pid) : parent;
    if (above != pid) {
      children.emplace(above, pid);
    }
  }
  return children;
}

std::vector<pid_t> receivers_of(pid_t root,
                                const Children& children,
                                const std::function<bool(pid_t)>& handles,
                                const std::function<bool(pid_t)>& is_shell) {
  const bool handles_itself = handles(root);
  std::vector<pid_t> receivers;
  if (!handles_itself || is_shell(root)) {
    const auto [begin, end] = children.equal_range(root);
    for (auto child = begin; child != end; ++child) {
      const auto below =
          receivers_of(child->second, children, handles, is_shell);
      receivers.insert(receivers.end(), below.begin(), below.end());
    }
  }
  if (receivers.empty() && handles_itself) {
    receivers.push_back(root);
  }
  return receivers;
}

bool signal_receivers(pid_t root, const Children& children, int number) {
  const auto catches = [number](pid_t pid) {
    return catches_signal(pid, number);
  };
  bool has_any = false;
  for (const pid_t pid : receivers_of(root, children, catches, runs_commands)) {
    has_any |= ::kill(pid, number) == 0;
  }
  return has_any;
}

void kill_descendants(pid_t ancestor) {
  // Repeat until no new process appears: a process may fork before it is
  // killed.
  std::set<pid_t> killed;
  for (bool is_new = true; is_new;) {
    is_new = false;
    // All are opened before the first one is killed, because its children then
    // get another parent.
    std::vector<Fd> processes;
    for (const auto& [pid, parent] : descendants_of(ancestor)) {
      is_new |= killed.insert(pid).second;
      processes.push_back(open_child_of(parent, pid));
    }
    for (const Fd& process : processes) {
      ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
    }
  }
}

std::optional<ExitStatus> peek_child(pid_t child) {
  siginfo_t info{};
  check(
      ::waitid(
          P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT),
      "waitid");
  return info.si_pid != 0 ? std::optional(status_of(info)) : std::nullopt;
}

void signal_child(pid_t child, int number) {
  ::kill(::getpgid(child) == child ? -child : child, number);
}

}  // namespace launcher
