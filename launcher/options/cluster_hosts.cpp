#include "launcher/options/cluster_hosts.h"

#include <stdexcept>

#include "ddp/base/cluster/env_integer.h"
#include "launcher/base/error.h"
#include "launcher/base/text.h"

namespace launcher {
namespace {

using ddp::detail::ClusterTask;

constexpr const char* kWayOut =
    "--standalone leaves the scheduler's variables unread";

bool is_complete(const GivenHosts& said) {
  return said.host_count && said.host_rank && said.master_addr;
}

/// Adds only the rank: an indexed Job knows neither the number of its pods nor
/// their addresses.
std::string add_index(GivenHosts& said, const ClusterTask& task) {
  if (said.host_rank || said.host_count.value_or(1) == 1) {
    return "";
  }
  said.host_rank = task.rank;
  return task.scheduler + " says: host " + std::to_string(task.rank) + " (" +
         kWayOut + ")";
}

void require_one_task_a_host(const ClusterTask& task) {
  if (task.count == task.host_count) {
    return;
  }
  throw UsageError(
      "expected one ddprun a host, which starts the workers there, but " +
      task.scheduler + " has started " + std::to_string(task.count) +
      " tasks on " + count_text(task.host_count, "host") + "; give " +
      task.one_per_host_command +
      " and ddprun --nproc-per-node=N, or start the program without ddprun (" +
      kWayOut + ")");
}

/// Without this error each ddprun would start a job of its own.
void check_alone(const GivenHosts& said, const ddp::EnvReader& reader) {
  const std::string variable = ddp::detail::unread_task(reader);
  if (!said.host_count && !variable.empty()) {
    throw std::invalid_argument(
        "expected the hosts of the job, because a scheduler has started this "
        "ddprun with others (" +
        variable +
        "), but its variables do not tell them; give --nnodes, --node-rank "
        "and --master-addr, or --nnodes=1");
  }
}

/// Adds the master address from the environment if the scheduler does not
/// provide it, as for a program without ddprun.
void add_stated_master(ClusterTask& task, const ddp::EnvReader& reader) {
  const char* address = reader(ddp::env::kMasterAddr);
  if (task.count == 0 || !task.master_addr.empty() || address == nullptr ||
      *address == '\0') {
    return;
  }
  task.master_addr = address;
  task.master_port =
      ddp::detail::env_integer(reader, ddp::env::kMasterPort, 1, 65535)
          .value_or(task.master_port);
}

}  // namespace

std::string add_cluster_hosts(GivenHosts& said,
                              const Environment& environment) {
  // A worker of another launcher inherits the scheduler's variables, which are
  // meant for that launcher.
  const bool is_worker =
      find_variable(environment, ddp::env::kRunId) != nullptr;
  if (is_worker || is_complete(said) || said.host_count == 1) {
    return "";
  }
  try {
    const auto reader = reader_of(environment);
    auto task = ddp::detail::read_cluster_task(reader);
    if (task) {
      add_stated_master(*task, reader);
      return add_cluster_hosts(said, *task);
    }
    check_alone(said, reader);
    return "";
  } catch (const std::invalid_argument& error) {
    throw UsageError(std::string(error.what()) + "; " + kWayOut);
  }
}

std::string add_cluster_hosts(GivenHosts& said, const ClusterTask& task) {
  if (task.count == 0) {
    return add_index(said, task);
  }
  const bool means_others =
      said.host_count && *said.host_count != task.host_count;
  if (task.count == 1 || is_complete(said) || means_others) {
    return "";
  }
  require_one_task_a_host(task);
  const bool is_told = !task.master_addr.empty();
  if (!said.master_addr && !is_told) {
    throw UsageError("--master-addr: expected the name of host 0, which " +
                     task.scheduler +
                     " does not tell, but got none; give it, " +
                     "or MASTER_ADDR, to every ddprun (" + kWayOut + ")");
  }
  if (!said.host_count) {
    said.host_count = task.host_count;
    said.scheduler = task.scheduler;
  }
  said.host_rank = said.host_rank.value_or(task.host_rank);
  if (!said.master_addr && is_told) {
    said.master_addr = task.master_addr;
    said.master_port = said.master_port.value_or(task.master_port);
  }
  if (said.run_id.empty()) {
    said.run_id = task.job_id;
  }
  return task.scheduler + " says: host " + std::to_string(*said.host_rank) +
         " of " + std::to_string(task.host_count) + ", rank 0 on " +
         *said.master_addr + " (" + kWayOut + ")";
}

}  // namespace launcher
