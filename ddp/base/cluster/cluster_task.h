#pragma once

#include <optional>
#include <string>

#include "ddp/base/cluster/worker_env.h"

// Task information that a cluster's scheduler gives to the programs that it
// starts, for all supported schedulers. Pure. Includes no LibTorch: ddprun and
// ddp::WorkerEnv both use it.
namespace ddp::detail {

/// One of the programs that `srun`, `mpirun`, `flux` or Kubernetes has started
/// as one job. A task is a rank under `srun ./train`, and a host under
/// `srun ddprun ./train`.
struct ClusterTask {
  std::string scheduler;  ///< name for messages: "Slurm"
  std::string job_id;     ///< the same for all tasks; "": unknown
  int rank = 0;
  int count = 1;       ///< tasks of the job; 0: unknown (an indexed Job)
  int local_rank = 0;  ///< rank among the tasks of this host
  int local_count = 1;
  int host_rank = 0;
  int host_count = 1;
  std::string master_addr;           ///< host of task 0; empty: unknown
  int master_port = 0;               ///< from job_id, equal on all hosts
  std::string master_hint;           ///< advice if master_addr is unknown
  std::string one_per_host_command;  ///< command that starts one task per host
};

/// Reads the variables of Open MPI, of MPICH and Intel MPI, of PALS, of Flux,
/// of Slurm and of Kubernetes. Returns std::nullopt if none of them started
/// this program: on a login node, in a batch script, or in the shell of an
/// allocation, where only `srun` would start tasks.
///
/// Checks mpirun before Slurm, because under Slurm mpirun starts its daemons
/// with `srun`, and the tasks inherit the daemons' variables.
///
/// @throws std::invalid_argument with one line that names the variable that is
///   missing or cannot be read, or the scheduler, if its variables contradict
///   each other.
std::optional<ClusterTask> read_cluster_task(const EnvReader& reader);

/// As above, for Kubernetes only. A pod may have a RANK.
std::optional<ClusterTask> read_pod(const EnvReader& reader);

/// Returns a variable that a scheduler sets in each process of a job, with its
/// value, or "". Called for a process without a task, which would otherwise
/// train as the only process of its job.
std::string unread_task(const EnvReader& reader);

/// Pure: returns a port for a job, from 15000 to 29499. The range is below the
/// ports that the kernel assigns by itself, and excludes torchrun's default.
/// Two jobs on one host mostly get different ports.
int port_of_job(const std::string& job_id);

}  // namespace ddp::detail
