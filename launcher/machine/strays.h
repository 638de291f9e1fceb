#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/base/exit_status.h"

namespace launcher {

/// Processes that workers have started and left. The kernel makes them children
/// of this process, even daemons. One object in a process.
class Strays {
 public:
  /// Makes this process the parent of orphaned descendants. Its present
  /// children (of a shell that executed ddprun) are no strays, nor are
  /// processes of this process's own session: workers have sessions of their
  /// own.
  Strays();
  Strays(const Strays&) = delete;
  Strays& operator=(const Strays&) = delete;

  /// Returns whether there are strays. Called without running workers, because
  /// workers are children, too.
  bool any() const;

  /// Returns the strays and all workers that are not reaped. Reads every
  /// process in /proc, so it is meant for the end of a job. If /proc is not
  /// mounted or hides the children, tries all possible pids and returns one
  /// child.
  std::vector<pid_t> find() const;

  /// Reaps children that have ended. Stops at the first one for which `is_kept`
  /// returns true: its owner reaps it.
  void reap(const std::function<bool(pid_t)>& is_kept);

 private:
  bool is_stray(pid_t pid) const;
  std::vector<pid_t> find_one() const;

  std::set<pid_t> earlier_;
  bool has_earlier_;
};

/// Children of processes. An orphan that has become this process's child counts
/// as the child of its session's leader.
using Children = std::multimap<pid_t, pid_t>;

/// Returns the children of all processes; empty if /proc is not mounted.
Children all_children();

/// Returns the processes of the tree with the root `root` that are to get a
/// signal: each process that handles it, but not the processes that this
/// process has started, such as data loaders. The signal would end a shell, or
/// wait for the shell's command, so a shell gets it only if no process below
/// handles it. Pure function.
std::vector<pid_t> receivers_of(pid_t root,
                                const Children& children,
                                const std::function<bool(pid_t)>& handles,
                                const std::function<bool(pid_t)>& is_shell);

/// Sends a signal to the receivers of a tree, which catch it. Returns whether
/// there are any.
bool signal_receivers(pid_t root, const Children& children, int number);

/// Sends SIGKILL to all descendants of a process that SIGKILL does not end:
/// they do not become children of this process. Does nothing without pidfds,
/// since the kernel may have given a descendant's pid to another process.
void kill_descendants(pid_t ancestor);

/// Returns how a child ended; std::nullopt while it runs. Does not reap: the
/// pid stays reserved.
std::optional<ExitStatus> peek_child(pid_t child);

/// Sends a signal to a child, or to its process group if the child leads one.
void signal_child(pid_t child, int number);

}  // namespace launcher
