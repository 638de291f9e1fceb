#include "ddp/job/process_group.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/base/gpu_checks.h"
#include "ddp/base/job_files/progress_file.h"
#include "ddp/base/net/tcp.h"
#include "ddp/job/backends.h"
#include "ddp/job/current_job.h"
#include "ddp/job/detail/job.h"
#include "ddp/job/detail/lock_within.h"
#include "ddp/job/error_text.h"
#include "ddp/job/record_errors.h"
#include "ddp/job/rendezvous.h"

namespace ddp {
namespace {

using detail::Job;

/// Never destroyed at exit: the other ranks see the end of the process instead.
Job*& job() {
  static Job* instance = nullptr;
  return instance;
}

/// Held while the job is replaced, and by functions that any thread may call at
/// any time.
std::mutex& job_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

/// Calls `use` with the job if there is one. Used in terminate handlers, too.
template <class Use>
void with_job(const Use& use) {
  const auto lock = detail::lock_within_a_second(job_mutex());
  if (lock && job() != nullptr) {
    use(*job());
  }
}

/// Registers after LibTorch's first group has registered its own exit
/// functions, so that this one runs before them.
void end_threads_at_exit() {
  static const bool once = [] {
    return std::atexit([] {
             if (job() != nullptr) {
               detail::end_threads(*job());
             }
           }) == 0;
  }();
  static_cast<void>(once);
}

Job& require_job() {
  TORCH_CHECK(job() != nullptr,
              "Expected a process group, but there is none; call "
              "ddp::init_process_group() first");
  return *job();
}

std::string choose_backend(const ProcessGroupOptions& options) {
  if (!options.backend()) {
    if (detail::nccl_device_count() > 0) {
      return "nccl";
    }
    const std::string problem =
        detail::unseen_gpus_problem(detail::count_gpu_files(),
                                    std::getenv("CUDA_VISIBLE_DEVICES"),
                                    detail::no_nccl_device_reason());
    TORCH_CHECK(problem.empty(), problem);
    return "gloo";
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
  const bool exists = device.index() >= 0 && device.index() < count;
  TORCH_CHECK(exists || !options.device(),
              "Expected ProcessGroupOptions::device to be one of the ",
              count,
              " GPUs that this host shows, from cuda:0 on, but got ",
              device);
  TORCH_CHECK(exists,
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

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

/// Chooses backend and device. On failure returns the error for the other
/// ranks, so that they do not wait for this rank.
detail::Arrival arrive(const ProcessGroupOptions& options, Job& job) {
  try {
    job.backend_name = choose_backend(options);
    job.device = choose_device(options, job.backend_name, job.env.local_rank);
    return {job.backend_name, ""};
  } catch (const c10::Error& error) {
    return {job.backend_name, error.what_without_backtrace()};
  }
}

std::chrono::milliseconds checked_limit(std::chrono::milliseconds limit,
                                        const char* name) {
  TORCH_CHECK(limit.count() > 0,
              "Expected ProcessGroupOptions::",
              name,
              " to be positive, but got ",
              limit.count(),
              " ms");
  return detail::at_most_a_year(limit);
}

std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks(static_cast<size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

c10::intrusive_ptr<c10d::Store> store_of(const ProcessGroupOptions& options,
                                         Job& job) {
  if (options.store()) {
    return options.store();
  }
  if (!options.text_all_gather()) {
    return detail::open_store(job.env, job.connect_timeout);
  }
  TORCH_CHECK(
      options.worker_env(),
      "Expected ProcessGroupOptions::worker_env with the rank and the "
      "world size beside ProcessGroupOptions::text_all_gather, but got none");
  return detail::open_store_by(
      options.text_all_gather(), job.env, job.connect_timeout);
}

void join(const ProcessGroupOptions& options, Job& job) {
  auto store = store_of(options, job);
  const auto mine = arrive(options, job);
  job.store = detail::meet(
      c10::make_intrusive<c10d::PrefixStore>(
          "ddp/" + variable(env::kRunId, "none"), std::move(store)),
      {job.env.rank, job.env.world_size},
      mine,
      job.connect_timeout);
  detail::open_channel(job);
  detail::set_current_device(job.device);
  job.world =
      detail::make_group(job,
                         {detail::kWorldGroup, all_ranks(job.env.world_size)},
                         job.backend_name);
}

/// Shows the chosen backend. Without this line a user sees only a slow training
/// if LibTorch does not see the machine's GPUs and trains on CPUs.
void print_group(const Job& job) {
  const auto& env = job.env;
  if (env.rank == 0 && env.world_size > 1 &&
      variable("DDP_QUIET", "0") == "0") {
    std::fprintf(stderr,
                 "ddp: %d ranks over %s, rank 0 on %s\n",
                 env.world_size,
                 job.backend_name.c_str(),
                 job.device.str().c_str());
  }
}

std::string leave_while_reporting(Job& job) {
  std::string problem;
  {
    const detail::RankWaitScope waits("destroy_process_group");
    detail::wait_actions().call();
    problem = detail::leave(job);
  }
  if (auto* progress = detail::progress_file()) {
    progress->retire();
  }
  return problem;
}

}  // namespace

void init_process_group(const ProcessGroupOptions& options) {
  TORCH_CHECK(job() == nullptr,
              "Expected no process group yet, but there is one; call "
              "ddp::destroy_process_group() before a second "
              "ddp::init_process_group()");
  if (!options.guest()) {
    detail::install_terminate_handler();
  }
  if (auto* progress = detail::progress_file()) {
    progress->begin();
  }
  const detail::RankWaitScope waits("init_process_group");
  auto next = std::make_unique<Job>();
  next->env = options.worker_env() ? *options.worker_env() : WorkerEnv::read();
  next->timeout = checked_limit(options.timeout(), "timeout");
  next->connect_timeout =
      checked_limit(options.connect_timeout(), "connect_timeout");
  next->shares_memory = options.shared_memory();
  next->guest = options.guest();
  detail::allow_connections(next->env.world_size);
  join(options, *next);
  {
    const std::lock_guard lock(job_mutex());
    job() = next.release();
  }
  end_threads_at_exit();
  print_group(*job());
}

void destroy_process_group() {
  const bool is_forked_child = job() != nullptr && job()->process != ::getpid();
  if (job() == nullptr || is_forked_child) {
    return;  // the child shares the connections of its parent
  }
  // Other threads may announce an error until all is closed.
  const std::string problem = leave_while_reporting(*job());
  std::unique_ptr<Job> last;
  {
    const std::lock_guard lock(job_mutex());
    last.reset(std::exchange(job(), nullptr));
  }
  last.reset();
  TORCH_CHECK(problem.empty(), problem);
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
  return require_job().world;
}

c10::intrusive_ptr<c10d::Backend> new_group(const std::vector<int>& ranks) {
  return detail::new_group(ranks, require_job().backend_name);
}

c10::intrusive_ptr<c10d::Backend> detail::new_group(
    const std::vector<int>& ranks, const std::string& backend) {
  Job& job = require_job();
  const std::set<int> unique(ranks.begin(), ranks.end());
  TORCH_CHECK(
      !ranks.empty() && unique.size() == ranks.size() && *unique.begin() >= 0 &&
          *unique.rbegin() < world_size(),
      "Expected distinct ranks from 0 to ",
      world_size() - 1,
      ", but got ",
      c10::IntArrayRef(std::vector<int64_t>(ranks.begin(), ranks.end())));
  // Every rank counts every group, so that the names are equal on all ranks.
  const std::string name = "group_" + std::to_string(job.group_count++);
  const auto place = std::find(ranks.begin(), ranks.end(), rank());
  if (place == ranks.end()) {
    return nullptr;
  }
  // A wait at the store would be pointless, and LibTorch would log many lines.
  const auto host = job.record->departure_of(0);
  TORCH_CHECK(!host,
              "Expected the store of the job for a new group, but it has ended "
              "with rank 0 (",
              describe(*host, job.record->passes()),
              "). Leave by ddp::destroy_process_group() and meet in another "
              "job, over a store that lives on "
              "(ddp::ProcessGroupOptions::store)");
  const RankWaitScope waits("new_group");
  return make_group(job, {name, ranks}, backend);
}

c10::intrusive_ptr<c10d::Backend> detail::sibling_group(
    const c10d::Backend& group,
    const std::string& purpose,
    const std::string& backend) {
  const auto* of = monitored_backend_of(group);
  const auto all = job() != nullptr
                       ? job()->groups.all()
                       : std::vector<c10::intrusive_ptr<MonitoredBackend>>();
  const bool is_of_job =
      std::any_of(all.begin(), all.end(), [of](const auto& one) {
        return one.get() == of;
      });
  if (!is_of_job) {
    return nullptr;
  }
  const auto name = of->members().name + "." + purpose;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) {
    return one->members().name == name;
  });
  if (found != all.end()) {
    return *found;
  }
  auto made = make_group(*job(),
                         {name, of->members().ranks},
                         backend.empty() ? of->getBackendName() : backend);
  made->setTimeout(of->timeout());
  return made;
}

c10::intrusive_ptr<c10d::Store> store() {
  return c10::make_intrusive<c10d::PrefixStore>("user", require_job().store);
}

void detail::report_fatal_error(const std::string& text,
                                const std::string& group) noexcept {
  with_job([&](const Job& last) {
    if (last.channel) {
      last.channel->report_failure(text, group);
    }
  });
}

void detail::request_stop() {
  with_job([](const Job& now) {
    if (now.channel) {
      now.channel->request_stop();
    }
  });
}

bool detail::wants_shared_memory() {
  return variable("DDP_SHARED_MEMORY", "1") != "0" &&
         (job() == nullptr || job()->shares_memory);
}

std::string detail::interface_hint_of(const WorkerEnv& env) {
  return env.host_count > 1 ? env.master_addr : "";
}

}  // namespace ddp
