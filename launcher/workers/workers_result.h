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
  std::chrono::milliseconds after{0};   ///< since the attempt's start
  int asked_by = 0;                     ///< signal ddprun had sent it, or 0
  std::vector<std::string> last_lines;  ///< of its stderr
  std::string error;                    ///< text of its error file
};

/// A worker that even SIGKILL did not end in time.
struct Survivor {
  int rank = 0;
  pid_t pid = 0;
  bool is_forbidden = false;  ///< another user's: the kernel refuses signals
};

/// What the workers of an attempt came to.
struct WorkersResult {
  std::vector<WorkerExit> exits;  ///< in the order in which the kernel had them
  std::vector<Survivor> survivors;
  int64_t oom_kills = 0;   ///< see OutOfMemory
  std::string oom_cgroup;  ///< that has counted them
};

}  // namespace launcher
