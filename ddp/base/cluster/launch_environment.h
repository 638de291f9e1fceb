#pragma once

#include <map>
#include <string>

#include "ddp/base/cluster/worker_env.h"

// Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// Variables by name.
using LaunchEnvironment = std::map<std::string, std::string>;

/// A worker as its launcher describes it: the input of `WorkerEnv`, and the
/// other values that torchrun sets.
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

/// Returns a worker of a job on this host only, with the store at `port`.
LaunchedWorker local_worker(int local_rank,
                            int workers,
                            int port,
                            const std::string& run_id);

/// Pure: returns the variables that torchrun sets for this worker. Rank 0 hosts
/// the store itself.
///
/// @param caller  the other variables of the worker. OMP_NUM_THREADS becomes 1
///   for more than one rank per host, as with torchrun, unless it is set
///   already.
LaunchEnvironment launch_environment(const LaunchedWorker& worker,
                                     const EnvReader& caller);

}  // namespace ddp::detail
