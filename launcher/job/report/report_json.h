#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/job/report/report.h"

namespace launcher {

/// What a job's JSON says beside its attempts.
struct JobFacts {
  std::string run_id;
  std::string host;
  std::vector<std::string> program;  ///< with its arguments
};

/// An attempt as an object of JSON, for programs: what decided it, and every
/// worker's end in the order in which the kernel had them. Pure.
///
/// - `number`: 1 for the first start, one more with each restart; `logs`: the
///   folder of its files, or null where they are not kept
/// - `exit_code`: ddprun's, if this attempt is the last one
/// - `cause`: null when all is well, else `kind` (worker_failed, start_failed,
///   signal, host_joined, host_left, host_vanished, host_failed,
///   rendezvous_lost, other_host_failed, time_is_up, stopped_cleanly, hang) and
///   what belongs to it: `rank`, `is_final` (an exit code of --final-codes),
///   `signal`, `host`, `text`, `limit_seconds`; where the job of several hosts
///   ends by a worker's failure `first`: `rank` and `host` of the one that the
///   coordinator was told of first; of a hang `timeout_seconds`, `timer` (of
///   torchrun's file, or null), `hung`: of each worker that hangs `rank`,
///   `local_rank`, `pid`, `quiet_seconds`, `limit_seconds`, `last_report`
///   (null: none), `is_stopped`, `stack` (null: not known), and `others`:
///   `rank` and `last_report` of those that ran
/// - `out_of_memory_kills`: processes that the kernel has killed in this time
///   for want of memory, in `out_of_memory_cgroup`
/// - `workers`: of each `rank`, `local_rank`, `pid`, `after_seconds` from its
///   start, `exit_code` or `signal` (the other is null), and its `part`:
///   first_failure, hung, followed (a failure after it), stopped (by ddprun,
///   with `stopped_by`), succeeded. Those that failed by themselves have
///   `stderr`, their last lines, and `error`, the message of their error file
/// - `survivors`: `rank` and `pid` of those that SIGKILL has not ended
std::string attempt_json(const AttemptResult& result, int exit_code);

/// All attempts as one JSON document: `version` 1, the facts, `state` (running
/// or ended), `exit_code` (null while it runs), `attempts`. Pure.
///
/// @param attempts what attempt_json() gave
/// @param exit_code of the job, when it has ended
std::string job_json(const JobFacts& facts,
                     const std::vector<std::string>& attempts,
                     std::optional<int> exit_code);

}  // namespace launcher
