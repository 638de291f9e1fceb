#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/job/policy/event.h"
#include "launcher/workers/worker_runner.h"

namespace launcher {

/// Result of an attempt, as far as it is known at its end.
struct AttemptResult {
  std::string host;
  std::string logs;  ///< folder of its kept files; empty: none
  WorkersResult workers;
  Cause cause;
  std::optional<FirstFailure> first{};  ///< first failure on any host, if known
  int restarts = 0;                     ///< before this attempt
  int max_restarts = 0;
  bool is_final = false;  ///< the first failure matches --final-codes
  int success_code = 0;   ///< exit code of ddprun after a success
  int worker_count = 1;
  int gpu_count = 0;  ///< visible to the workers; 0: none or unknown
  int64_t time = 0;   ///< end of the attempt, seconds since 1970
};

struct Report {
  std::string text;  ///< empty on success
  int exit_code = 0;
  /// For ddprun's own error file, which the launcher that started ddprun reads;
  /// empty on success.
  std::string error;
  std::string json;  ///< of the attempt, see report_json.h
};

/// Describes the result of an attempt from its cause. Pure function.
///
/// Exit codes: the code of the worker that failed first, or 128 + its signal;
/// 128 + the signal that ended ddprun or the hung workers; `success_code` for a
/// success.
Report make_report(const AttemptResult& result);

/// Returns "joined", "left", "vanished" or "failed".
std::string text_of(WorldBroken::Change change);

}  // namespace launcher
