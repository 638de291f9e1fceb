#pragma once

#include <optional>

#include "ddp/base/cluster/cluster_task.h"

// The schedulers one by one: nothing where this one did not start the program.
// They leave master_port to read_cluster_task() where nobody chose it.
namespace ddp::detail {

/// A task of `srun`: SLURM_PROCID and a step's number.
std::optional<ClusterTask> slurm_task(const EnvReader& reader);

/// First host of the Slurm allocation that mpirun runs in; empty: it does not.
std::string first_host_of_allocation(const EnvReader& reader);

/// A task of Open MPI's mpirun (prterun): OMPI_COMM_WORLD_*.
std::optional<ClusterTask> open_mpi_task(const EnvReader& reader);

/// A task of Hydra, the mpirun of MPICH and Intel MPI: PMI_* and MPI_LOCAL*.
std::optional<ClusterTask> hydra_task(const EnvReader& reader);

/// A pod: of Kubeflow's PyTorchJob, whose RANK and WORLD_SIZE count pods, or of
/// an indexed Job (a JobSet), which says its index alone.
std::optional<ClusterTask> pod_task(const EnvReader& reader);

}  // namespace ddp::detail
