#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "launcher/base/exit_status.h"

namespace launcher {

/// One worker of an attempt, as it is now.
struct WorkerState {
  /// What it has reported (--hang-timeout).
  struct Progress {
    bool has_reported = false;
    std::string last{};                  ///< for people; may be empty
    std::chrono::milliseconds quiet{0};  ///< since then, or since its start
  };

  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  std::optional<ExitStatus> end{};  ///< nothing: it is there
  int asked_by = 0;                 ///< signal that asked it to end, or 0
  bool is_stopped = false;          ///< by a signal
  std::optional<Progress> progress{};
};

/// How many of a host's workers are told of.
inline constexpr size_t kMostWorkerStates = 1024;

/// "running", "stopped", "ending" or "ended": one word, for programs.
std::string state_name(const WorkerState& worker);

}  // namespace launcher
