#pragma once

#include <string>
#include <string_view>

#include "launcher/workers/output/run_directory.h"
#include "launcher/workers/progress/progress_folder.h"

namespace launcher {

/// Where a job's status file lies, and the file that tells its workers which of
/// them have ended: in one of the job's temporary folders,
/// which are its owner's, or where it has none in one of its own, which the
/// destructor removes. Never in a --log-dir, which others may read and which
/// may lie on a file server.
///
/// The folder is locked (flock) while one of ddprun's processes lives, so that
/// a reader, and systemd-tmpfiles, can tell the folder of a job that runs from
/// one that a killed ddprun has left.
class StatusFolder {
 public:
  StatusFolder(const Job& job,
               const RunDirectory& directory,
               const ProgressFolder& progress);
  ~StatusFolder();
  StatusFolder(const StatusFolder&) = delete;
  StatusFolder& operator=(const StatusFolder&) = delete;

  /// Empty where none can be written to.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool is_own_ = false;
  Fd lock_;
};

/// Opens a folder and locks it, until the descriptor and its copies are closed.
/// None where that cannot be.
Fd lock_folder(const std::string& path);

/// Whether a process holds the lock of lock_folder().
bool is_locked(const std::string& path);

/// Whether a folder of temporary files is a job's, by its name.
bool is_job_folder(std::string_view name);

}  // namespace launcher
