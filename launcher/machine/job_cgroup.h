#pragma once

#include <optional>
#include <string>

#include "launcher/base/fd.h"
#include "launcher/machine/cgroup_path.h"

namespace launcher {

/// A cgroup for the job, so that a single write kills all its processes, even
/// detached ones. Created if the kernel (Linux 5.14) and the permissions allow
/// it. Otherwise all functions do nothing, and ddprun finds the processes by
/// itself.
class JobCgroup {
 public:
  /// @param parent folder of the parent cgroup; std::nullopt: create none
  explicit JobCgroup(
      const std::optional<std::string>& parent = own_cgroup_folder());
  ~JobCgroup();
  JobCgroup(const JobCgroup&) = delete;
  JobCgroup& operator=(const JobCgroup&) = delete;

  /// Creates a child cgroup and returns its folder, to start processes in; an
  /// empty Fd without a cgroup. Each attempt needs a new one: Linux 6.18 kills
  /// every process that is started in a cgroup that has been killed once.
  Fd add(const std::string& name) const;

  /// Returns the folder that add() creates; empty without a cgroup.
  std::string folder(const std::string& name) const {
    return path_.empty() ? "" : path_ + "/" + name;
  }

  /// Removes a cgroup that add() has created, if no process is left in it.
  void remove(const std::string& name) const;

  /// Sends SIGKILL to every process in the cgroup and its children.
  void kill() const;

  /// As kill(), then waits up to five seconds for the end of the processes and
  /// removes the cgroup.
  void kill_and_remove() const;

 private:
  std::string path_;  // empty: no cgroup
};

}  // namespace launcher
