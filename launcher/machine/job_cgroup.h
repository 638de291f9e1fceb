#pragma once

#include <optional>
#include <string>

#include "launcher/base/fd.h"
#include "launcher/machine/cgroup_path.h"

namespace launcher {

/// A cgroup of the job's own, so that one write kills all its processes,
/// however they hide. Made where the kernel (Linux 5.14) and the rights allow
/// it; elsewhere it does nothing, and ddprun finds the processes by itself.
class JobCgroup {
 public:
  /// @param parent folder of the cgroup to make it in; nothing: make none
  explicit JobCgroup(
      const std::optional<std::string>& parent = own_cgroup_folder());
  ~JobCgroup();
  JobCgroup(const JobCgroup&) = delete;
  JobCgroup& operator=(const JobCgroup&) = delete;

  /// The folder of a new cgroup in it, to start processes in; none when there
  /// is no cgroup. One for each attempt: Linux 6.18 kills whatever is started
  /// in one that has been killed once.
  Fd add(const std::string& name) const;

  /// Where add() makes them; empty when there is no cgroup.
  std::string folder(const std::string& name) const {
    return path_.empty() ? "" : path_ + "/" + name;
  }

  /// Removes what add() has made, where no process is in it any more.
  void remove(const std::string& name) const;

  /// SIGKILL to every process in the cgroup and below.
  void kill() const;

 private:
  std::string path_;  // empty: there is none
};

}  // namespace launcher
