#pragma once

#include <optional>
#include <string>

#include "ddp/base/cluster/cluster_task.h"
#include "launcher/base/environment.h"

namespace launcher {

/// What somebody has said of the hosts of a job: the command line, PET_
/// variables, a scheduler.
struct GivenHosts {
  std::optional<int> host_count;
  std::optional<int> host_rank;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  std::string run_id;  ///< empty: nothing said
};

/// Adds to `said` what a scheduler says (Slurm, MPI, Kubernetes) and the user
/// does not. Nothing is added where the user has said how many hosts there are
/// and means others than the scheduler's, nor in a job of another job.
///
/// @returns one line for the user that tells what was added; empty: nothing
/// @throws UsageError when the scheduler has started several ddpruns on a host,
///   or its variables cannot be read
std::string add_cluster_hosts(GivenHosts& said, const Environment& environment);

/// The same, of a task that has been read. Pure.
std::string add_cluster_hosts(GivenHosts& said,
                              const ddp::detail::ClusterTask& task);

}  // namespace launcher
