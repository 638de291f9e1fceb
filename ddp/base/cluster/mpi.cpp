#include <algorithm>
#include <string_view>

#include "ddp/base/cluster/env_integer.h"
#include "ddp/base/cluster/schedulers.h"

namespace ddp::detail {
namespace {

/// Computes host numbers, because mpirun does not report the hosts of its
/// tasks. Assumes that all hosts have as many tasks as this one; this is
/// correct for one task per host and for a single host.
void guess_hosts(ClusterTask& task) {
  task.host_count = (task.count + task.local_count - 1) / task.local_count;
  task.host_rank = std::min(task.rank / task.local_count, task.host_count - 1);
}

/// Returns mpirun's own host from "1.0;tcp://10.0.0.1,192.168.0.1:4000;
/// tcp6://[fd00::1,fd00::2]:4000"; either part may be missing. Rank 0 runs on
/// this host unless mpirun was told to leave it out.
std::string host_of_uri(std::string_view uri) {
  constexpr std::string_view kVersion4 = "tcp://";
  constexpr std::string_view kVersion6 = "tcp6://[";
  const bool is_version6 = uri.find(kVersion4) == std::string_view::npos;
  const std::string_view start = is_version6 ? kVersion6 : kVersion4;
  const size_t found = uri.find(start);
  if (found == std::string_view::npos) {
    return "";
  }
  const std::string_view rest = uri.substr(found + start.size());
  return std::string(
      rest.substr(0, rest.find_first_of(is_version6 ? ",]" : ",:")));
}

/// Names of the variables with the ranks of a task.
struct PlaceNames {
  const char* rank;
  const char* count;
  const char* local_rank;
  const char* local_count;
  const char* job;
};

void read_place(ClusterTask& task,
                const EnvReader& reader,
                const PlaceNames& names) {
  task.rank = require_env_integer(reader, names.rank, 0, kMostRanks);
  task.count = require_env_integer(reader, names.count, 1, kMostRanks);
  task.local_rank =
      require_env_integer(reader, names.local_rank, 0, kMostRanks);
  task.local_count =
      require_env_integer(reader, names.local_count, 1, kMostRanks);
  guess_hosts(task);
  task.job_id = env_text(reader, names.job);
  task.master_addr = first_host_of_allocation(reader);
}

}  // namespace

std::optional<ClusterTask> open_mpi_task(const EnvReader& reader) {
  if (reader("OMPI_COMM_WORLD_RANK") == nullptr) {
    return std::nullopt;
  }
  ClusterTask task;
  task.scheduler = "Open MPI";
  task.one_per_host_command = "mpirun --map-by ppr:1:node";
  task.master_hint = "mpirun -x MASTER_ADDR=HOST";
  read_place(task,
             reader,
             {.rank = "OMPI_COMM_WORLD_RANK",
              .count = "OMPI_COMM_WORLD_SIZE",
              .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
              .local_count = "OMPI_COMM_WORLD_LOCAL_SIZE",
              .job = "PMIX_NAMESPACE"});
  const char* uri = reader("OMPI_MCA_orte_hnp_uri");  // up to Open MPI 4
  if (task.master_addr.empty() && uri != nullptr) {
    task.master_addr = host_of_uri(uri);
  }
  return task;
}

std::optional<ClusterTask> hydra_task(const EnvReader& reader) {
  // Slurm's own PMI sets PMI_RANK, too, but slurm_task() reads more.
  if (reader("PMI_RANK") == nullptr || reader("MPI_LOCALRANKID") == nullptr) {
    return std::nullopt;
  }
  ClusterTask task;
  task.scheduler = "MPICH";
  task.one_per_host_command = "mpiexec -ppn 1";
  task.master_hint = "mpiexec -genv MASTER_ADDR HOST";
  read_place(task,
             reader,
             {.rank = "PMI_RANK",
              .count = "PMI_SIZE",
              .local_rank = "MPI_LOCALRANKID",
              .local_count = "MPI_LOCALNRANKS",
              .job = "SLURM_JOB_ID"});  // Hydra has no job id
  return task;
}

std::optional<ClusterTask> pals_task(const EnvReader& reader) {
  if (reader("PALS_RANKID") == nullptr) {
    return std::nullopt;
  }
  ClusterTask task;
  task.scheduler = "PALS";
  task.one_per_host_command = "mpiexec --ppn 1";
  task.master_hint =
      "mpiexec --env MASTER_ADDR=HOST, for example the first line of "
      "$PBS_NODEFILE";
  const bool has_pals_size = reader("PALS_LOCAL_SIZE") != nullptr;
  read_place(
      task,
      reader,
      {.rank = "PALS_RANKID",
       .count = "PMI_SIZE",
       .local_rank = "PALS_LOCAL_RANKID",
       .local_count = has_pals_size ? "PALS_LOCAL_SIZE" : "PMI_LOCAL_SIZE",
       .job = "PALS_APID"});
  return task;
}

}  // namespace ddp::detail
