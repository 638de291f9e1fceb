#include "ddp/base/cluster/env_integer.h"
#include "ddp/base/cluster/schedulers.h"

namespace ddp::detail {
namespace {

/// Returns true if RANK and WORLD_SIZE count pods, instead of workers of a
/// launcher.
bool counts_pods(const EnvReader& reader) {
  return is_filled(reader, "KUBERNETES_SERVICE_HOST") &&
         is_filled(reader, env::kRank) && is_filled(reader, env::kWorldSize) &&
         is_filled(reader, env::kMasterAddr) &&
         !is_filled(reader, env::kLocalRank) && !is_filled(reader, env::kRunId);
}

ClusterTask kubeflow_task(const EnvReader& reader) {
  ClusterTask task;
  task.scheduler = "Kubeflow";
  task.rank = require_env_integer(reader, env::kRank, 0, kMostRanks);
  task.count = require_env_integer(reader, env::kWorldSize, 1, kMostRanks);
  task.host_rank = task.rank;
  task.host_count = task.count;
  task.master_addr = reader(env::kMasterAddr);
  // Some versions set "localhost" on the master; other pods cannot reach the
  // master at this name.
  if (task.master_addr == "localhost" && is_filled(reader, "HOSTNAME")) {
    task.master_addr = reader("HOSTNAME");
  }
  task.master_port =
      env_integer(reader, env::kMasterPort, 1, 65535).value_or(0);
  return task;
}

}  // namespace

std::optional<ClusterTask> pod_task(const EnvReader& reader) {
  if (counts_pods(reader)) {
    return kubeflow_task(reader);
  }
  const auto index = env_integer(reader, "JOB_COMPLETION_INDEX", 0, kMostRanks);
  if (!index) {
    return std::nullopt;
  }
  ClusterTask task;
  task.scheduler = "Kubernetes";
  task.rank = task.host_rank = *index;
  task.count = task.host_count = 0;
  return task;
}

}  // namespace ddp::detail
