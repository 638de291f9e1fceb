#include "ddp/base/cluster/cluster_task.h"

#include <cstdint>
#include <stdexcept>

#include "ddp/base/cluster/env_integer.h"
#include "ddp/base/cluster/schedulers.h"

namespace ddp::detail {
namespace {

std::optional<ClusterTask> task_of_any(const EnvReader& reader) {
  for (const auto read : {open_mpi_task,
                          hydra_task,
                          pals_task,
                          flux_task,
                          slurm_task,
                          pod_task}) {
    if (auto task = read(reader)) {
      return task;
    }
  }
  return std::nullopt;
}

std::string of(int rank, int count) {
  return std::to_string(rank) + " of " + std::to_string(count);
}

void check_ranks(const ClusterTask& task) {
  const bool fits =
      task.rank < task.count && task.host_rank < task.host_count &&
      task.local_rank < task.local_count && task.local_count <= task.count;
  if (!fits) {
    throw std::invalid_argument(
        "Expected the variables of " + task.scheduler +
        " to agree, but got task " + of(task.rank, task.count) +
        ", on this host " + of(task.local_rank, task.local_count) + ", host " +
        of(task.host_rank, task.host_count));
  }
}

std::optional<ClusterTask> completed(std::optional<ClusterTask> task) {
  if (!task || task->count == 0) {
    return task;
  }
  check_ranks(*task);
  if (task->host_count == 1) {
    task->master_addr = "127.0.0.1";
  }
  if (task->master_port == 0) {
    task->master_port = port_of_job(task->job_id);
  }
  return task;
}

}  // namespace

std::optional<ClusterTask> read_cluster_task(const EnvReader& reader) {
  return completed(task_of_any(reader));
}

std::optional<ClusterTask> read_pod(const EnvReader& reader) {
  return completed(pod_task(reader));
}

std::string unread_task(const EnvReader& reader) {
  for (const char* name : {"PMIX_RANK", "JOB_COMPLETION_INDEX"}) {
    if (const auto text = env_text(reader, name); !text.empty()) {
      return name + ("=" + text);
    }
  }
  for (const char* name : {"PMI_SIZE", "PET_NNODES"}) {
    const auto text = env_text(reader, name);
    if (!text.empty() && text != "1" && text != "1:1") {
      return name + ("=" + text);
    }
  }
  return "";
}

int port_of_job(const std::string& job_id) {
  constexpr uint32_t kFirst = 15000;
  constexpr uint32_t kEnd = 29500;
  // FNV-1a is the same with every compiler, unlike std::hash.
  uint32_t hash = 2166136261U;
  for (const char c : job_id) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  return static_cast<int>(kFirst + hash % (kEnd - kFirst));
}

}  // namespace ddp::detail
