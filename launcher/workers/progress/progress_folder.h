#pragma once

#include <string>

#include "launcher/plan/plan.h"

namespace launcher {

/// The folder of the files that workers report to, and are told by, while they
/// run: its owner's,
/// beside other temporary files (see RunDirectory), and never in a --log-dir,
/// which may lie on a file server: a worker writes to it in each step. Removed
/// with all that is in it by the destructor.
class ProgressFolder {
 public:
  /// Makes one where the job needs it: for --hang-timeout, --on-preempt and
  /// torchrun's file timer.
  ///
  /// @throws LaunchError when it cannot be made
  explicit ProgressFolder(const Job& job);
  ~ProgressFolder();
  ProgressFolder(const ProgressFolder&) = delete;
  ProgressFolder& operator=(const ProgressFolder&) = delete;

  /// Empty when there is none.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace launcher
