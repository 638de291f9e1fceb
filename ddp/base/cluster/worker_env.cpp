#include "ddp/base/cluster/worker_env.h"

#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "ddp/base/cluster/cluster_task.h"
#include "ddp/base/cluster/env_integer.h"
#include "ddp/base/gpu_checks.h"

namespace ddp {
namespace {

using detail::env_integer;
using detail::is_filled;
using detail::kMostRanks;
using detail::require_env_integer;

constexpr const char* kAdvice =
    ". Start the program with ddprun or torchrun, or set RANK, WORLD_SIZE, "
    "LOCAL_RANK, MASTER_ADDR and MASTER_PORT by hand";

void read_master(const EnvReader& reader, WorkerEnv& result) {
  if (!is_filled(reader, env::kMasterAddr)) {
    throw std::invalid_argument(
        "Expected the environment variable MASTER_ADDR to name the host of "
        "rank 0, but it is missing or empty");
  }
  result.master_addr = reader(env::kMasterAddr);
  result.master_port = require_env_integer(reader, env::kMasterPort, 1, 65535);
}

bool is_loopback(std::string_view host) {
  return host.substr(0, 4) == "127." || host == "localhost" || host == "::1";
}

/// Estimates the number of hosts. Ranks with variables set by hand may run on
/// several hosts without GROUP_WORLD_SIZE; they could not connect if rank 0
/// listened on loopback only.
int guess_host_count(const EnvReader& reader, const WorkerEnv& result) {
  if (is_loopback(result.master_addr)) {
    return 1;
  }
  const int local =
      env_integer(reader, env::kLocalWorldSize, 1, kMostRanks).value_or(1);
  return (result.world_size + local - 1) / local;
}

/// Reads RANK and the related variables, as ddprun and torchrun set them.
WorkerEnv env_of_launcher(const EnvReader& reader) {
  WorkerEnv result;
  result.launched = true;
  result.world_size =
      require_env_integer(reader, env::kWorldSize, 1, kMostRanks);
  result.rank = require_env_integer(reader, env::kRank, 0, kMostRanks);
  if (result.rank >= result.world_size) {
    throw std::invalid_argument(
        "Expected RANK to be below WORLD_SIZE, but got RANK=" +
        std::to_string(result.rank) +
        " and WORLD_SIZE=" + std::to_string(result.world_size));
  }
  result.local_world_size =
      env_integer(reader, env::kLocalWorldSize, 1, kMostRanks)
          .value_or(result.world_size);
  // Without LOCAL_RANK, assumes one host, as torch.distributed examples do.
  result.local_rank = env_integer(reader, env::kLocalRank, 0, kMostRanks)
                          .value_or(result.rank % result.local_world_size);
  result.restart_count =
      env_integer(reader, env::kRestartCount, 0, kMostRanks).value_or(0);
  if (result.world_size > 1 || reader(env::kMasterAddr) != nullptr) {
    read_master(reader, result);
  }
  result.host_count = env_integer(reader, env::kGroupWorldSize, 1, kMostRanks)
                          .value_or(guess_host_count(reader, result));
  const char* agent_store = reader(env::kUseAgentStore);
  result.use_agent_store =
      agent_store != nullptr && std::string_view(agent_store) == "True";
  return result;
}

/// Returns true if the scheduler has given this task exactly one visible GPU.
bool has_own_gpu(const EnvReader& reader) {
  const char* visible = reader("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && detail::names_a_gpu(visible) &&
         std::string_view(visible).find(',') == std::string_view::npos;
}

void check_world_size(const EnvReader& reader,
                      const detail::ClusterTask& task) {
  const int stated =
      env_integer(reader, env::kWorldSize, 1, kMostRanks).value_or(task.count);
  if (stated != task.count) {
    throw std::invalid_argument(
        "Expected WORLD_SIZE to be the number of tasks that " + task.scheduler +
        " has started, " + std::to_string(task.count) + ", but got " +
        std::to_string(stated) + "; unset it, or set RANK, too");
  }
}

/// Reads a task of srun or mpirun. MASTER_ADDR and MASTER_PORT override its
/// values.
WorkerEnv env_of_task(const EnvReader& reader,
                      const detail::ClusterTask& task) {
  check_world_size(reader, task);
  WorkerEnv result;
  result.launched = true;
  result.rank = task.rank;
  result.world_size = task.count;
  // Like torchrun's --virtual-local-rank.
  result.local_rank = has_own_gpu(reader) ? 0 : task.local_rank;
  result.local_world_size = task.local_count;
  result.host_count = task.host_count;
  result.master_addr = is_filled(reader, env::kMasterAddr)
                           ? reader(env::kMasterAddr)
                           : task.master_addr;
  result.master_port = env_integer(reader, env::kMasterPort, 1, 65535)
                           .value_or(task.master_port);
  if (result.master_addr.empty()) {
    throw std::invalid_argument(
        "Expected MASTER_ADDR to name the host of rank 0, which " +
        task.scheduler + " does not tell, but it is missing; give " +
        task.master_hint);
  }
  return result;
}

void check_alone(const EnvReader& reader) {
  const std::string variable = detail::unread_task(reader);
  if (!variable.empty()) {
    throw std::invalid_argument(
        "Expected a rank for this process, because a scheduler has started it "
        "with others (" +
        variable +
        "), but no variable tells its rank; RANK=0 and WORLD_SIZE=1 let it "
        "train alone");
  }
}

WorkerEnv read_all(const EnvReader& reader) {
  const bool has_rank = reader(env::kRank) != nullptr;
  const auto task =
      has_rank ? detail::read_pod(reader) : detail::read_cluster_task(reader);
  if (task && task->count > 1) {
    return env_of_task(reader, *task);
  }
  if (has_rank || reader(env::kWorldSize) != nullptr) {
    return env_of_launcher(reader);
  }
  if (!task || task->count == 0) {
    check_alone(reader);
  }
  return {};
}

}  // namespace

WorkerEnv WorkerEnv::read(const EnvReader& reader) {
  try {
    return read_all(reader);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(error.what() + std::string(kAdvice));
  }
}

WorkerEnv WorkerEnv::read() {
  return read([](const char* name) { return std::getenv(name); });
}

}  // namespace ddp
