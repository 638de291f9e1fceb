#pragma once

#include <map>
#include <string>

#include "ddp/base/cluster/worker_env.h"

// Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// Variables by name.
using LaunchEnvironment = std::map<std::string, std::string>;

/// What whoever starts a worker tells it of its job: what `WorkerEnv` reads,
/// and what torchrun sets besides.
struct LaunchedWorker {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int host_rank = 0;   ///< GROUP_RANK
  int host_count = 1;  ///< GROUP_WORLD_SIZE
  std::string role = "default";
  std::string master_addr;
  int master_port = 0;
  int restart_count = 0;
  int max_restarts = 0;
  std::string run_id;
};

/// A worker of a job of this host alone, with the store at `port`.
LaunchedWorker local_worker(int local_rank,
                            int workers,
                            int port,
                            const std::string& run_id);

/// Pure: the variables that torchrun sets for this worker, which hosts the
/// store itself if it is rank 0.
///
/// @param caller  the environment that the worker has otherwise: like torchrun,
///   OMP_NUM_THREADS becomes 1 for more than one rank a host, unless it is set.
LaunchEnvironment launch_environment(const LaunchedWorker& worker,
                                     const EnvReader& caller);

}  // namespace ddp::detail
