#pragma once

#include <sys/types.h>

#include "launcher/base/fd.h"
#include "launcher/machine/cgroup.h"

namespace launcher {

/// A process that kills the workers if ddprun itself is killed (`kill -9`). The
/// kernel then kills only ddprun's children (PR_SET_PDEATHSIG), but a worker
/// may be a shell, and its children hold the GPUs.
///
/// The watcher reads the process groups of the job from a pipe. When ddprun
/// ends, the pipe ends; the watcher then sends SIGKILL to the groups and to the
/// job's cgroup, and ends. It has its own session and process name, so that a
/// kill of ddprun's process group or `pkill -9 ddprun` does not reach it. It
/// handles no signal, and no wait for any child sees it.
class Watcher {
 public:
  /// Forks the watcher. To be called before this process has a second thread.
  ///
  /// @throws std::system_error if no process can be created
  explicit Watcher(const JobCgroup& cgroup);
  /// Ends the watcher. The job's processes must have ended.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// Descriptor for add_own_group().
  int fd() const { return groups_.get(); }

  /// Removes a process group that has no process any more, because the kernel
  /// may give its id to another one.
  void remove(pid_t group) const;

 private:
  Fd groups_;
  pid_t pid_;
};

/// Adds the calling process's group. Called by a worker before it executes its
/// program, so that no process of the group can exist before the watcher knows
/// the group. Async-signal-safe.
void add_own_group(int watcher_fd);

}  // namespace launcher
