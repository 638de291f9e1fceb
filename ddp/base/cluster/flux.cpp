#include "ddp/base/cluster/env_integer.h"
#include "ddp/base/cluster/schedulers.h"

namespace ddp::detail {

std::optional<ClusterTask> flux_task(const EnvReader& reader) {
  if (reader("FLUX_TASK_RANK") == nullptr) {
    return std::nullopt;
  }
  ClusterTask task;
  task.scheduler = "Flux";
  task.one_per_host_command = "flux run --tasks-per-node=1";
  task.master_hint = "flux run --env=MASTER_ADDR=HOST";
  task.rank = require_env_integer(reader, "FLUX_TASK_RANK", 0, kMostRanks);
  task.count = require_env_integer(reader, "FLUX_JOB_SIZE", 1, kMostRanks);
  task.host_count =
      require_env_integer(reader, "FLUX_JOB_NNODES", 1, task.count);
  task.local_rank =
      require_env_integer(reader, "FLUX_TASK_LOCAL_ID", 0, kMostRanks);
  // Flux does not report the tasks of each host. It spreads them evenly.
  task.local_count = (task.count + task.host_count - 1) / task.host_count;
  task.host_rank = task.rank / task.local_count;
  task.job_id = env_text(reader, "FLUX_JOB_ID");
  return task;
}

}  // namespace ddp::detail
