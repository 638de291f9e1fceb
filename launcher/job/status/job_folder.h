#pragma once

#include <string>
#include <string_view>

#include "launcher/workers/output/run_directory.h"

namespace launcher {

/// Chooses the folder that ddprun shares with `ddprun --status`: the folder of
/// the run if that is a temporary one, else a temporary folder that the
/// destructor removes.
///
/// Holds a lock (flock) on the folder while one of ddprun's processes is alive,
/// so that readers and systemd-tmpfiles can distinguish the folder of a running
/// job from the folder of a killed ddprun.
class JobFolder {
 public:
  /// @throws LaunchError if no place is writable although the job needs one:
  ///   for --hang-timeout or --on-preempt
  JobFolder(const Job& job, const RunDirectory& directory);
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  /// Path of the folder; empty if no place is writable.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool is_own_ = false;
  Fd lock_;
};

/// Opens and locks a folder. The lock lasts until the descriptor and its copies
/// are closed. Returns an empty Fd if the folder cannot be opened or locked.
Fd lock_folder(const std::string& path);

/// Returns whether a process holds the lock of lock_folder().
bool is_locked(const std::string& path);

/// Returns whether the name of a temporary folder is that of a job's folder.
bool is_job_folder(std::string_view name);

}  // namespace launcher
