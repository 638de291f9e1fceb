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

/// What a ddprun is doing: what `ddprun --status` tells.
struct JobStatus {
  std::string job;  ///< its id
  std::string host;
  std::string program;
  pid_t pid = 0;         ///< that the user has started
  pid_t supervisor = 0;  ///< its other process
  std::string phase;     ///< "running": see phase_name()
  std::chrono::milliseconds uptime{0};
  int attempts = 0;  ///< that have been started; 0: what follows means nothing
  int generation = 0;
  int restarts = 0;
  int max_restarts = 0;
  /// That max_restarts counts in; nothing: the whole job.
  std::optional<std::chrono::milliseconds> restart_window{};
  int host_rank = 0;
  int host_count = 1;
  int first_rank = 0;
  int world_size = 0;
  std::string store;  ///< of rank 0, "host:port"
  std::string logs;   ///< folder of the attempt's; empty: none are kept
  int worker_count = 0;
  std::vector<WorkerState> workers;  ///< of this host: see kMostWorkerStates
};

/// What is known of a job at one moment.
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

/// Pure. Texts of workers and of the user are cut to a length that has bounds.
JobStatus job_status(JobMoment moment);

/// One word, for programs.
std::string phase_name(Policy::Phase phase);

}  // namespace launcher
