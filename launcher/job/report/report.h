#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/job/policy/event.h"
#include "launcher/workers/workers_result.h"

namespace launcher {

/// What is known of an attempt when it is over.
struct AttemptResult {
  std::string host;
  std::string logs;  ///< folder of its files; empty: they are not kept
  WorkersResult workers;
  Cause cause;
  std::optional<FirstFailure> first{};  ///< of all hosts' workers, if known
  int restarts = 0;                     ///< before this attempt
  int max_restarts = 0;
  bool is_final = false;  ///< the first failure's exit code, by --final-codes
  int worker_count = 1;
  int gpu_count = 0;  ///< that the workers saw; 0: none, or not known
  int64_t time = 0;   ///< of its end, seconds since 1970
};

struct Report {
  std::string text;  ///< empty when all is well
  int exit_code = 0;
  std::string error;  ///< for ddprun's own error file; empty when all is well
  std::string json;   ///< of the attempt: see report_json.h
};

/// Says how an attempt went, from what decided it. Pure.
///
/// The exit code is that of the worker that failed first, or 128 + its signal,
/// or 128 + the signal that ended ddprun or those that hung; 124 after
/// --time-limit; 0 where a stop was clean (torchrun: 1) and --clean-stop was
/// given.
Report make_report(const AttemptResult& result);

/// "joined", "left", "vanished" or "failed".
std::string text_of(WorldBroken::Change change);

}  // namespace launcher
