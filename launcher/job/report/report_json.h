#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/job/policy/policy.h"
#include "launcher/job/report/report.h"
#include "launcher/plan/world.h"

namespace launcher {

/// Fields of a job's JSON that do not belong to an attempt.
struct JobFacts {
  std::string run_id;
  std::string host;
  std::vector<std::string> program;  ///< with its arguments
  int max_restarts = 0;
};

/// State of a job at one moment.
struct JobState {
  Policy::Phase phase = Policy::Phase::joining;
  int attempts = 0;  ///< that have started; if 0, the next fields are unset
  World world{};
  std::string logs{};  ///< folder of the attempt; empty: not kept
  std::vector<WorkerState> workers{};
};

/// Returns an attempt as a JSON object, for programs: its cause, and the exits
/// of all workers in the kernel's order. Pure function.
///
/// - `number`: 1 for the first start, plus one for each restart; `logs`: the
///   folder of its files, or null if they are not kept
/// - `exit_code`: exit code of ddprun if this attempt is the last one
/// - `cause`: null on success, else `kind` (worker_failed, start_failed,
///   signal, host_joined, host_left, host_vanished, host_failed,
///   rendezvous_lost, other_host_failed, hang) and its fields: `rank`,
///   `is_final` (an exit code of --final-codes), `signal`, `host`, `text`. If a
///   worker's failure ends a job of several hosts, `first` holds `rank` and
///   `host` of the failure that was reported to the coordinator first. A hang
///   has `timeout_seconds`, `hung` (for each hung worker `rank`, `local_rank`,
///   `pid`, `quiet_seconds`, `limit_seconds`, `last_report` (null: none),
///   `is_stopped`), and `others` (`rank` and
///   `last_report` of the other running workers)
/// - `out_of_memory_kills`: number of processes that the kernel killed during
///   the attempt because memory was full, in `out_of_memory_cgroup`
/// - `workers`: for each worker `rank`, `local_rank`, `pid`, `after_seconds`
///   since its start, `exit_code` or `signal` (the other is null), and its
///   `part`: first_failure, hung, followed (a later failure), stopped (by
///   ddprun, with `stopped_by`), succeeded. Workers that failed by themselves
///   have `stderr` (last lines) and `error` (message of their error file)
/// - `survivors`: `rank` and `pid` of workers that SIGKILL did not end
std::string attempt_json(const AttemptResult& result, int exit_code);

/// Returns the job as one JSON document. Pure function.
///
/// - `version` 1; the facts `run_id`, `host`, `program`, `max_restarts`
/// - `state`: running or ended; `exit_code`: null while the job runs
/// - `phase`: the name of a `Policy::Phase`
/// - `now`: null before the first attempt, else `restarts`, `generation`,
///   `host_rank`, `host_count`, `first_rank`, `world_size`, `store` (of rank 0,
///   "host:port"), `logs`, and `workers`: for each `rank`, `local_rank`, `pid`,
///   `state` (running, ending or ended), `exit_code` and `signal`
/// - `attempts`: the ended attempts
///
/// @param attempts results of attempt_json()
/// @param exit_code of the job, if it has ended
std::string job_json(const JobFacts& facts,
                     const JobState& state,
                     const std::vector<std::string>& attempts,
                     std::optional<int> exit_code);

}  // namespace launcher
