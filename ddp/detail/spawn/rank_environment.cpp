#include "ddp/detail/spawn/rank_environment.h"

namespace ddp::detail {

RankEnvironment rank_environment(int local_rank,
                                 int nprocs,
                                 int port,
                                 const EnvReader& caller) {
  const auto rank = std::to_string(local_rank);
  const auto world = std::to_string(nprocs);
  RankEnvironment result{{env::kRank, rank},
                         {env::kWorldSize, world},
                         {env::kLocalRank, rank},
                         {env::kLocalWorldSize, world},
                         {env::kGroupRank, "0"},
                         {env::kGroupWorldSize, "1"},
                         {env::kRoleName, "default"},
                         {env::kRoleRank, rank},
                         {env::kRoleWorldSize, world},
                         {env::kMasterAddr, "127.0.0.1"},
                         {env::kMasterPort, std::to_string(port)},
                         {env::kRestartCount, "0"},
                         {env::kMaxRestarts, "0"},
                         {env::kRunId, "spawn"},
                         {env::kUseAgentStore, "False"}};
  const auto set_if_absent = [&](const char* name, const char* value) {
    if (caller(name) == nullptr) {
      result.emplace(name, value);
    }
  };
  set_if_absent("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (nprocs > 1) {
    set_if_absent("OMP_NUM_THREADS", "1");
  }
  return result;
}

}  // namespace ddp::detail
