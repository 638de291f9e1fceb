#pragma once

#include <string>

#include "launcher/fd.h"

namespace launcher {

/// A cgroup of the job's own, so that one write kills all its processes,
/// however they hide. Made where the kernel (Linux 5.14) and the rights allow
/// it; elsewhere it does nothing, and ddprun finds the processes by itself.
class JobCgroup {
 public:
  JobCgroup();
  ~JobCgroup();
  JobCgroup(const JobCgroup&) = delete;
  JobCgroup& operator=(const JobCgroup&) = delete;

  /// The folder to start processes in; -1 when there is none.
  int fd() const { return folder_.get(); }
  /// Empty when there is none.
  const std::string& path() const { return path_; }

  void kill() const { kill_cgroup(path_); }

  /// SIGKILL to every process in the cgroup and below.
  static void kill_cgroup(const std::string& path);
  /// Waits until no process is in the cgroup or below, some seconds at most.
  static void await_empty(const std::string& path);
  /// Removes an empty cgroup, and those that nested jobs left in it.
  static void remove_cgroup(const std::string& path);

 private:
  std::string path_;
  Fd folder_;
};

}  // namespace launcher
