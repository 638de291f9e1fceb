#pragma once

#include <optional>
#include <string>

#include "ddp/base/cluster/worker_env.h"

// What a cluster's scheduler tells the programs that it starts, whichever it
// is. Pure. Includes no LibTorch: ddprun and ddp::WorkerEnv both use it.
namespace ddp::detail {

/// One of the programs that `srun`, `mpirun` or Kubernetes has started as one
/// job. Under `srun ./train` it is a rank, under `srun ddprun ./train` a host.
struct ClusterTask {
  std::string scheduler;  ///< its name, for messages: "Slurm"
  std::string job_id;     ///< the same for all tasks; empty: not known
  int rank = 0;
  int count = 1;  ///< tasks of the job; 0: not known, as with an indexed Job
  int local_rank = 0;  ///< among the tasks of this host
  int local_count = 1;
  int host_rank = 0;
  int host_count = 1;
  std::string master_addr;  ///< where task 0 runs; empty: not known
  int master_port = 0;      ///< chosen from job_id, alike on all hosts
  std::string master_hint;  ///< what to do where master_addr is not known
  std::string one_a_host;   ///< how to start one task a host
};

/// Reads the variables of Open MPI, of MPICH and Intel MPI, of Slurm and of
/// Kubernetes. Nothing where none of them started this program: on a login
/// node, in a batch script or in the shell of an allocation, where only `srun`
/// would start tasks.
///
/// mpirun comes before Slurm, since under Slurm it lets `srun` start its own
/// daemons, whose variables its tasks inherit.
///
/// @throws std::invalid_argument with one line that names the variable that is
///   missing, cannot be read or contradicts another
std::optional<ClusterTask> read_cluster_task(const EnvReader& reader);

/// The same of Kubernetes alone, whose pods may have a RANK.
std::optional<ClusterTask> read_pod(const EnvReader& reader);

/// A port for a job, from 15000 to 29499: below those that the kernel hands out
/// by itself, and not torchrun's. Two jobs on one host mostly get two.
int port_of_job(const std::string& job_id);

}  // namespace ddp::detail
