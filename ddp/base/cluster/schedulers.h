#pragma once

#include <optional>

#include "ddp/base/cluster/cluster_task.h"

// One function per scheduler; it returns std::nullopt if this scheduler did not
// start the program. If no port is set, the functions leave master_port to
// read_cluster_task().
namespace ddp::detail {

/// Reads a task of `srun`: SLURM_PROCID and a step number.
std::optional<ClusterTask> slurm_task(const EnvReader& reader);

/// Returns the first host of the Slurm allocation that mpirun runs in, or ""
/// without an allocation.
std::string first_host_of_allocation(const EnvReader& reader);

/// Reads a task of Open MPI's mpirun (prterun): OMPI_COMM_WORLD_*.
std::optional<ClusterTask> open_mpi_task(const EnvReader& reader);

/// Reads a task of Hydra, the mpirun of MPICH and Intel MPI: PMI_* and
/// MPI_LOCAL*.
std::optional<ClusterTask> hydra_task(const EnvReader& reader);

/// Reads a task of HPE's PALS, the mpiexec of Cray EX under PBS: PALS_* and
/// PMI_SIZE.
std::optional<ClusterTask> pals_task(const EnvReader& reader);

/// Reads a task of `flux run`: FLUX_TASK_* and FLUX_JOB_*.
std::optional<ClusterTask> flux_task(const EnvReader& reader);

/// Reads a pod of Kubeflow's PyTorchJob, where RANK and WORLD_SIZE count pods,
/// or a pod of an indexed Job (a JobSet), which has only its index.
std::optional<ClusterTask> pod_task(const EnvReader& reader);

}  // namespace ddp::detail
