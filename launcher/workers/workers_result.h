#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/base/exit_status.h"

namespace launcher {

/// How one worker of an attempt ended.
struct WorkerExit {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  ExitStatus status;
  std::chrono::milliseconds after{0};  ///< time since the attempt's start
  int asked_by = 0;                    ///< signal that ddprun had sent it, or 0
  std::vector<std::string> last_lines;  ///< end of its stderr
  std::string error;                    ///< text of its error file
};

/// A worker that SIGKILL did not end in time.
struct Survivor {
  int rank = 0;
  pid_t pid = 0;
  /// The kernel refuses signals: another user's process.
  bool is_forbidden = false;
};

/// Result of an attempt.
struct WorkersResult {
  /// In the order in which the kernel reported them.
  std::vector<WorkerExit> exits;
  std::vector<Survivor> survivors;
  int64_t oom_kills = 0;   ///< see OutOfMemory
  std::string oom_cgroup;  ///< cgroup that counted them
};

}  // namespace launcher
