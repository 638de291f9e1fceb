#pragma once

#include "launcher/base/environment.h"

// Environments that schedulers create: the relevant variables, and others that
// could be mistaken for them.
namespace launcher::test {

using Variables = Environment;
using launcher::reader_of;

inline Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    variables[name] = value;
  }
  return variables;
}

inline Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

/// A task of `srun` with one task on each of `hosts` hosts (node1, node2, ...).
/// The job has one more host and task than the step; srun runs on a login node.
inline Variables srun_task_a_host(int rank, int hosts) {
  const std::string count = std::to_string(hosts);
  return {{"SLURM_JOB_ID", "1234"},
          {"SLURM_JOBID", "1234"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEPID", "0"},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", std::to_string(rank)},
          {"SLURM_NTASKS", count},
          {"SLURM_NNODES", count},
          {"SLURM_JOB_NUM_NODES", std::to_string(hosts + 1)},
          {"SLURM_JOB_NODELIST", "node[0-" + count + "]"},
          {"SLURM_STEP_NUM_TASKS", count},
          {"SLURM_STEP_NUM_NODES", count},
          {"SLURM_STEP_NODELIST", "node[1-" + count + "]"},
          {"SLURM_STEP_TASKS_PER_NODE", "1(x" + count + ")"},
          {"SLURM_TASKS_PER_NODE", "8(x" + count + "),1"},
          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.99"},
          {"SLURM_SRUN_COMM_HOST", "10.0.0.99"}};
}

/// Rank `rank` of `srun -n 5` on three hosts with two, two and one tasks.
inline Variables srun_five_tasks(int rank) {
  return with(srun_task_a_host(rank, 3),
              {{"SLURM_LOCALID", std::to_string(rank % 2)},
               {"SLURM_NODEID", std::to_string(rank / 2)},
               {"SLURM_NTASKS", "5"},
               {"SLURM_STEP_NUM_TASKS", "5"},
               {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"}});
}

/// The batch script on the first host of an allocation of four hosts.
inline Variables sbatch_script() {
  return {{"SLURM_JOB_ID", "1234"},
          {"SLURM_PROCID", "0"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "0"},
          {"SLURM_GTIDS", "0"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_NNODES", "4"},
          {"SLURM_JOB_NODELIST", "node[0-3]"},
          {"SLURM_TASKS_PER_NODE", "1(x4)"}};
}

/// The shell of `salloc` on the login node.
inline Variables salloc_shell() {
  return {{"SLURM_JOB_ID", "1234"},
          {"SLURM_NNODES", "4"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_JOB_NODELIST", "node[0-3]"},
          {"SLURM_TASKS_PER_NODE", "1(x4)"}};
}

/// The shell of `salloc` if it runs as a separate step on the first host.
inline Variables interactive_step() {
  return with(salloc_shell(),
              {{"SLURM_PROCID", "0"},
               {"SLURM_LOCALID", "0"},
               {"SLURM_NODEID", "0"},
               {"SLURM_STEP_ID", "4294967290"},
               {"SLURM_STEP_NODELIST", "node0"},
               {"SLURM_STEP_NUM_NODES", "1"},
               {"SLURM_STEP_NUM_TASKS", "1"},
               {"SLURM_STEP_TASKS_PER_NODE", "1"},
               {"SLURM_PTY_PORT", "39933"}});
}

/// Rank `rank` of Open MPI's mpirun with `count` tasks, `per_host` on each
/// host.
inline Variables open_mpi_task(int rank, int count, int per_host) {
  return {
      {"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
      {"OMPI_COMM_WORLD_SIZE", std::to_string(count)},
      {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank % per_host)},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(per_host)},
      {"OMPI_COMM_WORLD_NODE_RANK", std::to_string(rank % per_host)},
      {"OMPI_UNIVERSE_SIZE", "64"},
      {"OMPI_MCA_orte_hnp_uri", "2040397824.0;tcp://172.17.0.2,10.1.0.2:41473"},
      {"PMIX_NAMESPACE", "2040397825"},
      {"PMIX_RANK", std::to_string(rank)}};
}

/// As open_mpi_task(), but of MPICH's mpiexec.
inline Variables hydra_task(int rank, int count, int per_host) {
  return {{"PMI_RANK", std::to_string(rank)},
          {"PMI_SIZE", std::to_string(count)},
          {"PMI_FD", "7"},
          {"MPI_LOCALRANKID", std::to_string(rank % per_host)},
          {"MPI_LOCALNRANKS", std::to_string(per_host)}};
}

/// As open_mpi_task(), but of PALS, the mpiexec of Cray EX.
inline Variables pals_task(int rank, int count, int per_host) {
  return {{"PALS_APID", "6f1f0b9e-2ba0-4c0b-a2a8-3a2b1c5a0d11"},
          {"PALS_RANKID", std::to_string(rank)},
          {"PALS_NODEID", std::to_string(rank / per_host)},
          {"PALS_LOCAL_RANKID", std::to_string(rank % per_host)},
          {"PALS_LOCAL_SIZE", std::to_string(per_host)},
          {"PMI_RANK", std::to_string(rank)},
          {"PMI_SIZE", std::to_string(count)},
          {"PMI_LOCAL_RANK", std::to_string(rank % per_host)},
          {"PMI_LOCAL_SIZE", std::to_string(per_host)},
          {"PBS_NODEFILE", "/var/spool/pbs/aux/1234"}};
}

/// As open_mpi_task(), but of `flux run`.
inline Variables flux_task(int rank, int count, int per_host) {
  return {
      {"FLUX_TASK_RANK", std::to_string(rank)},
      {"FLUX_TASK_LOCAL_ID", std::to_string(rank % per_host)},
      {"FLUX_JOB_SIZE", std::to_string(count)},
      {"FLUX_JOB_NNODES", std::to_string((count + per_host - 1) / per_host)},
      {"FLUX_JOB_ID", "f2ovXBvRR"},
      {"PMI_RANK", std::to_string(rank)},
      {"PMI_SIZE", std::to_string(count)},
      {"PMI_FD", "9"}};
}

/// Pod `rank` of a Kubeflow PyTorchJob of `count` pods.
inline Variables kubeflow_pod(int rank, int count) {
  return {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
          {"HOSTNAME", rank == 0 ? "job-master-0" : "job-worker-0"},
          {"MASTER_ADDR", "job-master-0"},
          {"MASTER_PORT", "23456"},
          {"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(count)}};
}

/// Pod `index` of an indexed Job.
inline Variables indexed_pod(int index) {
  return {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
          {"JOB_COMPLETION_INDEX", std::to_string(index)}};
}

}  // namespace launcher::test
