#pragma once

#include <string>
#include <string_view>

#include "launcher/workers/output/run_directory.h"
#include "launcher/workers/progress/progress_folder.h"

namespace launcher {

/// Chooses the folder of a job's status file and of the file that lists the
/// ended workers for the running ones. Uses one of the job's temporary folders,
/// which have mode 0700. If the job has none, creates a folder, which the
/// destructor removes. Never uses a --log-dir, which other users may read and
/// which may lie on a file server.
///
/// Holds a lock (flock) on the folder while one of ddprun's processes is alive,
/// so that readers and systemd-tmpfiles can distinguish the folder of a running
/// job from the folder of a killed ddprun.
class StatusFolder {
 public:
  StatusFolder(const Job& job,
               const RunDirectory& directory,
               const ProgressFolder& progress);
  ~StatusFolder();
  StatusFolder(const StatusFolder&) = delete;
  StatusFolder& operator=(const StatusFolder&) = delete;

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
