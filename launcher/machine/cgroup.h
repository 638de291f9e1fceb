#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/base/fd.h"

namespace launcher {

/// Returns the folder of this process's own cgroup: in the version 2 hierarchy,
/// or in the version 1 hierarchy of `controller` ("memory"). Returns
/// std::nullopt if that hierarchy is not mounted or does not show this
/// process's cgroup.
std::optional<std::string> own_cgroup_folder(std::string_view controller = "");

/// Returns the folder of this process's own cgroup and the folders above it;
/// the limits of all of them apply. If the hierarchy of a version 1 controller
/// does not show the process's cgroup (in a container), begins with the mount
/// itself.
std::vector<std::string> limiting_cgroup_folders(
    std::string_view controller = "");

/// Same as own_cgroup_folder(), from the texts of /proc/self/mountinfo and
/// /proc/self/cgroup.
std::optional<std::string> cgroup_folder(std::string_view mountinfo,
                                         std::string_view membership,
                                         std::string_view controller = "");

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

/// Returns the number of processes that the kernel killed because memory was
/// full. Parses the text of a cgroup's memory.events, which includes its
/// descendants, or of a version 1 cgroup's memory.oom_control. Returns
/// std::nullopt if the text has no count.
std::optional<int64_t> oom_kills_of(std::string_view memory_events);

/// Counts the out-of-memory kills of a cgroup since construction. If the cgroup
/// has no counter because it lacks the memory controller, uses its nearest
/// ancestor with a counter, which may include other processes. If no version 2
/// cgroup has a counter, uses the version 1 memory controller.
class OutOfMemory {
 public:
  /// @param cgroup folder of a version 2 cgroup; empty: none
  /// @param version_1 folder of the same processes in the version 1 memory
  ///   controller; empty: none
  OutOfMemory(std::string cgroup, std::string version_1);

  /// Returns the number of kills; 0 without a counter.
  int64_t kills() const;

  /// Folder of the cgroup that counts; empty: none.
  const std::string& cgroup() const { return cgroup_; }

 private:
  std::optional<int64_t> count() const;

  std::string cgroup_;
  const char* file_ = "/memory.events";
  int64_t before_ = 0;
};

}  // namespace launcher
