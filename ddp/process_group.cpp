#include "ddp/process_group.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/detail/process_group/backends.h"
#include "ddp/detail/process_group/departure.h"
#include "ddp/detail/process_group/job_reach.h"
#include "ddp/detail/process_group/meeting.h"

namespace ddp {
namespace {

constexpr std::chrono::milliseconds kLeaveTimeout{10'000};

struct Job {
  WorkerEnv env;
  std::string backend_name;
  c10::Device device = c10::Device(c10::kCPU);
  std::chrono::milliseconds timeout{0};
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> backend;
  int groups = 0;
};

/// Never destroyed at exit: LibTorch's own statics may be gone by then.
Job*& job() {
  static Job* instance = nullptr;
  return instance;
}

const Job& require_job() {
  TORCH_CHECK(job() != nullptr,
              "Expected a process group, but there is none; call "
              "ddp::init_process_group() first");
  return *job();
}

std::string choose_backend(const ProcessGroupOptions& options) {
  if (!options.backend()) {
    return detail::nccl_device_count() > 0 ? "nccl" : "gloo";
  }
  const std::string& name = *options.backend();
  TORCH_CHECK(name == "nccl" || name == "gloo",
              "Expected backend \"nccl\" or \"gloo\", but got \"",
              name,
              "\"");
  return name;
}

c10::Device choose_device(const ProcessGroupOptions& options,
                          const std::string& backend,
                          int local_rank) {
  if (backend == "gloo") {
    return options.device().value_or(c10::Device(c10::kCPU));
  }
  const int count = detail::nccl_device_count();
  TORCH_CHECK(
      count > 0,
      "Expected a GPU for backend \"nccl\", but LibTorch sees none; use "
      "backend \"gloo\", or check the driver and CUDA_VISIBLE_DEVICES");
  const auto device = options.device().value_or(
      c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)));
  TORCH_CHECK(device.is_cuda(),
              "Expected a CUDA device for backend \"nccl\", but got ",
              device);
  TORCH_CHECK(device.index() >= 0 && device.index() < count,
              "Expected a GPU for LOCAL_RANK=",
              local_rank,
              ", but this host shows ",
              count,
              " to it; start at most ",
              count,
              " workers here (ddprun --nproc-per-node=",
              count,
              "), or use backend \"gloo\"");
  return device;
}

c10::intrusive_ptr<c10d::Backend> make_backend(const Job& job,
                                               const std::string& name,
                                               int rank,
                                               int size) {
  detail::BackendSpec spec;
  spec.store = c10::make_intrusive<c10d::PrefixStore>(name, job.store);
  spec.rank = rank;
  spec.size = size;
  spec.device = job.device;
  spec.timeout = job.timeout;
  spec.reach = detail::reach_of(job.env);
  return job.backend_name == "nccl" ? detail::make_nccl_backend(spec)
                                    : detail::make_gloo_backend(spec);
}

std::string run_id() {
  const char* id = std::getenv(env::kRunId);
  return id == nullptr ? "none" : id;
}

/// Chooses backend and device; the reason goes to the peers when it fails, so
/// that they need not wait for this rank.
detail::Arrival arrive(const ProcessGroupOptions& options, Job& job) {
  try {
    job.backend_name = choose_backend(options);
    job.device = choose_device(options, job.backend_name, job.env.local_rank);
    return {job.backend_name, ""};
  } catch (const c10::Error& error) {
    return {job.backend_name, error.what_without_backtrace()};
  }
}

/// False when the store is gone, and rank 0 with it.
bool note_departure(const Job& job, int rank) {
  try {
    detail::note_departure(*job.store, rank, job.env.world_size);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void leave(const Job& job) {
  if (!note_departure(job, job.env.rank)) {
    return;
  }
  const auto missing = detail::wait_for_departures(
      *job.store, job.env.world_size, kLeaveTimeout);
  if (job.env.rank == 0 && !missing.empty()) {
    TORCH_WARN(
        "Expected all ranks to come to ddp::destroy_process_group() "
        "within ",
        kLeaveTimeout.count() / 1000,
        " s of each other, but ",
        missing.size(),
        " did not: rank ",
        detail::list_ranks(missing));
  }
}

}  // namespace

void init_process_group(const ProcessGroupOptions& options) {
  TORCH_CHECK(job() == nullptr,
              "Expected no process group yet, but there is one; call "
              "ddp::destroy_process_group() before a second "
              "ddp::init_process_group()");
  auto next = std::make_unique<Job>();
  next->env = options.worker_env() ? *options.worker_env() : WorkerEnv::read();
  next->timeout = options.timeout();
  next->store = c10::make_intrusive<c10d::PrefixStore>(
      detail::key_prefix(next->env, run_id()),
      options.store()
          ? options.store()
          : detail::open_store(next->env, options.connect_timeout()));
  const auto mine = arrive(options, *next);
  const auto arrivals = detail::exchange_arrivals(*next->store,
                                                  next->env.rank,
                                                  next->env.world_size,
                                                  mine,
                                                  options.connect_timeout());
  const std::string problem = detail::arrivals_problem(arrivals);
  if (!problem.empty()) {
    // The host of the store stays until all have read the reason.
    detail::store_barrier(
        *next->store, "refused", next->env.world_size, kLeaveTimeout);
    TORCH_CHECK(false, problem);
  }
  detail::set_current_device(next->device);
  next->backend =
      make_backend(*next, "world", next->env.rank, next->env.world_size);
  job() = next.release();
}

void destroy_process_group() {
  std::unique_ptr<Job> last(std::exchange(job(), nullptr));
  if (last && last->env.world_size > 1) {
    leave(*last);
  }
}

bool is_initialized() {
  return job() != nullptr;
}

int rank() {
  return job() ? job()->env.rank : 0;
}

int world_size() {
  return job() ? job()->env.world_size : 1;
}

int local_rank() {
  return job() ? job()->env.local_rank : 0;
}

c10::Device local_device() {
  if (job() != nullptr) {
    return job()->device;
  }
  return detail::nccl_device_count() > 0 ? c10::Device(c10::kCUDA, 0)
                                         : c10::Device(c10::kCPU);
}

c10::intrusive_ptr<c10d::Backend> process_group() {
  return require_job().backend;
}

c10::intrusive_ptr<c10d::Backend> new_group(const std::vector<int>& ranks) {
  require_job();
  const std::set<int> unique(ranks.begin(), ranks.end());
  TORCH_CHECK(
      !ranks.empty() && unique.size() == ranks.size() && *unique.begin() >= 0 &&
          *unique.rbegin() < world_size(),
      "Expected distinct ranks from 0 to ",
      world_size() - 1,
      ", but got ",
      c10::IntArrayRef(std::vector<int64_t>(ranks.begin(), ranks.end())));
  // Every rank counts every group, members or not: the names stay equal.
  const std::string name = "group_" + std::to_string(job()->groups++);
  const auto place = std::find(ranks.begin(), ranks.end(), rank());
  if (place == ranks.end()) {
    return nullptr;
  }
  return make_backend(*job(),
                      name,
                      static_cast<int>(place - ranks.begin()),
                      static_cast<int>(ranks.size()));
}

c10::intrusive_ptr<c10d::Store> store() {
  return c10::make_intrusive<c10d::PrefixStore>("user", require_job().store);
}

void detail::note_death(int rank) {
  ddp::note_departure(require_job(), rank);
}

std::string detail::reach_of(const WorkerEnv& env) {
  return env.host_count > 1 ? env.master_addr : "";
}

std::string detail::job_reach() {
  return reach_of(require_job().env);
}

}  // namespace ddp
