#pragma once

#include <string>

#include "launcher/output/run_directory.h"
#include "launcher/progress/progress_folder.h"

namespace launcher {

/// Where a job's status socket lies: in one of the job's temporary folders,
/// which are its owner's, or where it has none in one of its own, which the
/// destructor removes. Never in a --log-dir, which others may read and which
/// may lie on a file server.
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
};

}  // namespace launcher
