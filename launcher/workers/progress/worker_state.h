#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "launcher/base/exit_status.h"

namespace launcher {

/// Current state of one worker of an attempt.
struct WorkerState {
  /// Last progress report (with --hang-timeout).
  struct Progress {
    bool has_reported = false;
    std::string last{};  ///< for messages; may be empty
    /// Time since that report or the start.
    std::chrono::milliseconds quiet{0};
  };

  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  std::optional<ExitStatus> end{};  ///< exit status; std::nullopt: running
  int asked_by = 0;                 ///< signal that asked it to end, or 0
  bool is_stopped = false;          ///< stopped by a signal
  std::optional<Progress> progress{};
};

/// Maximum number of workers per host in the job status.
inline constexpr size_t kMostWorkerStates = 1024;

}  // namespace launcher
