#pragma once

#include <string>

#include "launcher/plan/plan.h"

namespace launcher {

/// Creates the folder of the files through which workers report progress and
/// receive stop requests. It has mode 0700 and lies beside other temporary
/// files (see RunDirectory), never in a --log-dir, which may lie on a file
/// server: a worker writes to it in each step. The destructor removes the
/// folder and its contents.
class ProgressFolder {
 public:
  /// Creates the folder if the job needs it: for --hang-timeout, --on-preempt
  /// and torchrun's file timer.
  ///
  /// @throws LaunchError if it cannot be created
  explicit ProgressFolder(const Job& job);
  ~ProgressFolder();
  ProgressFolder(const ProgressFolder&) = delete;
  ProgressFolder& operator=(const ProgressFolder&) = delete;

  /// Path of the folder; empty if there is none.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace launcher
