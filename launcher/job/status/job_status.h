#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/policy/policy.h"
#include "launcher/plan/plan.h"
#include "launcher/workers/progress/worker_state.h"

namespace launcher {

/// Current status of a job, as shown by `ddprun --status`.
struct JobStatus {
  std::string job;  ///< run id
  std::string host;
  std::string program;
  pid_t pid = 0;         ///< process that the user started
  pid_t supervisor = 0;  ///< ddprun's second process
  std::string phase;     ///< "running", ...: see phase_name()
  std::chrono::milliseconds uptime{0};
  int attempts = 0;  ///< started attempts; if 0, the next fields are unset
  int generation = 0;
  int restarts = 0;
  int max_restarts = 0;
  int host_rank = 0;
  int host_count = 1;
  int first_rank = 0;
  int world_size = 0;
  std::string store;  ///< store of rank 0, "host:port"
  std::string logs;   ///< folder of the attempt; empty: not kept
  int worker_count = 0;
  /// Of this host, at most kMostWorkerStates.
  std::vector<WorkerState> workers;
};

/// State of a job at one moment.
struct JobMoment {
  const Job& job;
  Policy::Phase phase;
  std::chrono::milliseconds uptime;
  int attempts;
  const World& world;  ///< of the last attempt
  const std::string& logs;
  std::vector<WorkerState> workers;
  pid_t pid;
  pid_t supervisor;
};

/// Builds the status. Truncates texts of workers and of the user to a bounded
/// length. Pure function.
JobStatus job_status(JobMoment moment);

/// Returns the phase as one word, for programs.
std::string phase_name(Policy::Phase phase);

/// Returns "running", "stopped", "ending" or "ended": one word, for programs.
std::string state_name(const WorkerState& worker);

}  // namespace launcher
