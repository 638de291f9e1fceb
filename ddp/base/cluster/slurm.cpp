#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "ddp/base/cluster/env_integer.h"
#include "ddp/base/cluster/host_list.h"
#include "ddp/base/cluster/schedulers.h"
#include "ddp/base/text/number.h"

namespace ddp::detail {
namespace {

/// Returns false for batch scripts and shells of allocations: they have no step
/// number or one of Slurm's special, highest numbers.
bool is_task_of_a_step(const EnvReader& reader) {
  constexpr uint32_t kFirstSpecial = 0xfffffff0U;
  const char* step = reader("SLURM_STEP_ID");
  if (step == nullptr || reader("SLURM_PROCID") == nullptr) {
    return false;
  }
  const auto number = parse_number<uint32_t>(step);
  return number && *number < kFirstSpecial;
}

/// Calls `expand` on the value of a variable; errors name the variable.
template <typename Expand>
auto expanded(const char* name, const char* text, const Expand& expand) {
  try {
    return expand(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument("The environment variable " +
                                std::string(name) + ": " + error.what());
  }
}

template <typename Expand>
auto require_expanded(const EnvReader& reader,
                      const char* name,
                      const Expand& expand) {
  const char* text = reader(name);
  if (text == nullptr) {
    throw std::invalid_argument("Expected the environment variable " +
                                std::string(name) +
                                " to be set in a step of Slurm, but it is "
                                "missing");
  }
  return expanded(name, text, expand);
}

void place_among_hosts(const EnvReader& reader, ClusterTask& task) {
  // Not SLURM_LAUNCH_NODE_IPADDR: srun may run on a login node.
  const auto hosts =
      require_expanded(reader, "SLURM_STEP_NODELIST", expand_host_list);
  const auto counts =
      require_expanded(reader, "SLURM_STEP_TASKS_PER_NODE", expand_counts);
  task.host_count = static_cast<int>(hosts.size());
  task.host_rank =
      require_env_integer(reader, "SLURM_NODEID", 0, task.host_count - 1);
  task.local_rank = require_env_integer(reader, "SLURM_LOCALID", 0, kMostRanks);
  if (counts.size() != hosts.size()) {
    throw std::invalid_argument(
        "Expected a number of tasks for each host of SLURM_STEP_NODELIST (" +
        std::to_string(hosts.size()) + "), but SLURM_STEP_TASKS_PER_NODE has " +
        std::to_string(counts.size()));
  }
  task.local_count = counts[static_cast<size_t>(task.host_rank)];
  task.master_addr = hosts.front();
}

}  // namespace

std::optional<ClusterTask> slurm_task(const EnvReader& reader) {
  if (!is_task_of_a_step(reader)) {
    return std::nullopt;
  }
  ClusterTask task;
  task.scheduler = "Slurm";
  task.one_per_host_command = "srun --ntasks-per-node=1";
  task.job_id = env_text(reader, "SLURM_JOB_ID") + "." +
                env_text(reader, "SLURM_STEP_ID");
  task.rank = require_env_integer(reader, "SLURM_PROCID", 0, kMostRanks);
  task.count =
      require_env_integer(reader, "SLURM_STEP_NUM_TASKS", 1, kMostRanks);
  if (task.count > 1) {
    place_among_hosts(reader, task);
  }
  return task;
}

std::string first_host_of_allocation(const EnvReader& reader) {
  constexpr const char* kName = "SLURM_JOB_NODELIST";
  const char* text = reader(kName);
  return text == nullptr ? "" : expanded(kName, text, expand_host_list).front();
}

}  // namespace ddp::detail
