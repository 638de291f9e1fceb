#pragma once

#include <string>

#include "launcher/fd.h"
#include "launcher/plan.h"

namespace launcher {

/// The folder of one job's files, readable by its owner only:
/// `<log dir>/<run id>_<random>/attempt_<n>/<local rank>/{stdout.log,
/// stderr.log,error.json}`.
///
/// Without --log-dir it lies in $TMPDIR (else /tmp), or in the folder of the
/// worker that ddprun itself is, and is removed by the destructor, unless
/// --redirects or --tee ask for files to be kept there.
class RunDirectory {
 public:
  /// @throws LaunchError when it cannot be made
  explicit RunDirectory(const Job& job);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }
  bool is_kept() const { return is_kept_; }

 private:
  std::string path_;
  bool is_kept_ = false;
};

/// What path() would be, with XXXXXX for the random part: for --dry-run.
std::string run_directory_pattern(const Job& job);

/// Makes a worker's folder, with its parents, for the owner only.
void make_private_directories(const std::string& path);

/// Makes a log file for the owner only; it must not exist.
///
/// @throws LaunchError when it cannot be made
Fd create_log(const std::string& path);

}  // namespace launcher
