#pragma once

#include <string>

#include "launcher/workers/output/run_directory.h"

namespace launcher {

/// Chooses the folder of the files that ddprun shares with its workers
/// (progress, requests to stop, the list of ended workers, torchrun's file
/// timer): the folder of the run if that is a temporary one, else a temporary
/// folder that the destructor removes. It has
/// mode 0700 and is never a --log-dir, which other users may read and which may
/// lie on a file server: a worker writes to the folder in each step.
///
/// Holds a lock (flock) on the folder while one of ddprun's processes is alive,
/// so that systemd-tmpfiles keeps the folder of a running job.
class JobFolder {
 public:
  /// @throws LaunchError if no place is writable although the job needs one:
  ///   for --hang-timeout, --on-preempt and torchrun's file timer
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

}  // namespace launcher
