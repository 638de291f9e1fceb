#pragma once

#include <optional>
#include <string>

#include "ddp/base/cluster/cluster_task.h"
#include "launcher/base/environment.h"

namespace launcher {

/// Properties of a job's hosts as given by the command line, PET_ variables or
/// a scheduler.
struct GivenHosts {
  std::optional<int> host_count;
  std::optional<int> host_rank;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  std::string run_id;     ///< empty: not given
  std::string scheduler;  ///< that has given host_count; empty: none
};

/// Adds the values of a scheduler (Slurm, MPI, Kubernetes) that the user has
/// not given. Adds nothing if the user gave a number of hosts other than the
/// scheduler's, or if ddprun itself runs as a worker of another job.
///
/// @returns one line for the user that names the added values; empty: none
/// @throws UsageError if the scheduler has started several ddpruns on a host,
///   or its variables cannot be parsed
std::string add_cluster_hosts(GivenHosts& said, const Environment& environment);

/// As above, for a task that has already been read. Pure function.
std::string add_cluster_hosts(GivenHosts& said,
                              const ddp::detail::ClusterTask& task);

}  // namespace launcher
