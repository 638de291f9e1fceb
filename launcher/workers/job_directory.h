#pragma once

#include <string>

#include "launcher/plan/job.h"

namespace launcher {

/// Folder of the files that ddprun shares with its workers under --hang-timeout
/// and --on-preempt (ddp/base/job_files/job_directory.h). The constructor
/// creates it with mode 0700 in the first writable folder of $XDG_RUNTIME_DIR,
/// /dev/shm, /tmp and $TMPDIR; the destructor removes it. It is never in a
/// --log-dir: a worker writes to it in each step, and a --log-dir may be on a
/// file server and readable for others.
class JobDirectory {
 public:
  /// @throws LaunchError if the job needs the folder and no place is writable
  explicit JobDirectory(const Job& job);
  ~JobDirectory();
  JobDirectory(const JobDirectory&) = delete;
  JobDirectory& operator=(const JobDirectory&) = delete;

  /// Path of the folder; empty if the job needs none.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Returns the path of a JobDirectory with XXXXXX for the random part, for
/// --dry-run.
std::string job_directory_pattern(const Job& job);

}  // namespace launcher
