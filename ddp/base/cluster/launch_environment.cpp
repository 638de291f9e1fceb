#include "ddp/base/cluster/launch_environment.h"

namespace ddp::detail {

LaunchedWorker local_worker(int local_rank,
                            int workers,
                            int port,
                            const std::string& run_id) {
  LaunchedWorker worker;
  worker.rank = worker.local_rank = local_rank;
  worker.world_size = worker.local_world_size = workers;
  worker.master_addr = "127.0.0.1";
  worker.master_port = port;
  worker.run_id = run_id;
  return worker;
}

LaunchEnvironment launch_environment(const LaunchedWorker& worker,
                                     const EnvReader& caller) {
  const auto rank = std::to_string(worker.rank);
  const auto world = std::to_string(worker.world_size);
  LaunchEnvironment result{
      {env::kRank, rank},
      {env::kWorldSize, world},
      {env::kLocalRank, std::to_string(worker.local_rank)},
      {env::kLocalWorldSize, std::to_string(worker.local_world_size)},
      {env::kGroupRank, std::to_string(worker.host_rank)},
      {env::kGroupWorldSize, std::to_string(worker.host_count)},
      {env::kRoleName, worker.role},
      {env::kRoleRank, rank},
      {env::kRoleWorldSize, world},
      {env::kMasterAddr, worker.master_addr},
      {env::kMasterPort, std::to_string(worker.master_port)},
      {env::kRestartCount, std::to_string(worker.restart_count)},
      {env::kMaxRestarts, std::to_string(worker.max_restarts)},
      {env::kRunId, worker.run_id},
      {env::kUseAgentStore, "False"}};
  const auto set_if_absent = [&](const char* name, const char* value) {
    if (caller(name) == nullptr) {
      result.emplace(name, value);
    }
  };
  set_if_absent("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (worker.local_world_size > 1) {
    set_if_absent("OMP_NUM_THREADS", "1");
  }
  return result;
}

}  // namespace ddp::detail
