#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <set>
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

  /// Returns whether there are any. To be called without running workers, which
  /// are children, too.
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
