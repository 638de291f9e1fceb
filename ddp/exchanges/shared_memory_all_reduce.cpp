#include "ddp/exchanges/shared_memory_all_reduce.h"

#include <chrono>
#include <exception>
#include <functional>
#include <utility>

#include "ddp/job/current_job.h"
#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/wait.h"
#include "ddp/shared_memory/share_memory.h"
#include "ddp/shared_memory/shared_sums.h"

namespace ddp {
namespace {

/// A sum whose part of this rank is done where the rank starts it and waits for
/// it. If a tensor is not in shared memory, the wait makes an all-reduce.
class SharedWork : public c10d::Work {
 public:
  SharedWork(std::shared_ptr<detail::SharedSums> sums,
             c10d::Backend& group,
             std::chrono::milliseconds timeout,
             const at::Tensor& tensor)
      : Work(group.getRank(),
             c10d::OpType::ALLREDUCE,
             "ddp:all_reduce",
             std::vector<at::Tensor>{tensor}),
        sums_(std::move(sums)),
        group_(group),
        timeout_(timeout),
        tensors_{tensor},
        number_(sums_->start(tensor, timeout_)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
    try {
      if (!sums_->finish(number_, limit)) {
        group_.allreduce(tensors_)->wait(limit);
      }
    } catch (...) {
      finish(std::current_exception());
      throw;
    }
    finish();
    return true;
  }

 private:
  const std::shared_ptr<detail::SharedSums> sums_;
  c10d::Backend& group_;
  const std::chrono::milliseconds timeout_;
  std::vector<at::Tensor> tensors_;
  const detail::SumNumber number_;
};

}  // namespace

SharedMemoryAllReduce::SharedMemoryAllReduce(
    c10::intrusive_ptr<c10d::Backend> group, const AllReduceOptions& options)
    : AllReduce(std::move(group), options) {
  auto& ranks = this->group();
  if (ranks.getBackendName() == "nccl") {
    return;
  }
  auto memory = detail::share_memory(
      ranks, detail::wants_shared_memory() ? detail::host_name() : "");
  if (!memory) {
    return;
  }
  std::function<bool(int)> has_left;
  auto* job = detail::monitored_backend_of(ranks);
  if (job != nullptr) {
    has_left = [record = job->record(),
                world_ranks = job->members().ranks](int rank) {
      return record->departure_of(world_ranks[static_cast<size_t>(rank)])
          .has_value();
    };
  }
  sums_ = std::make_shared<detail::SharedSums>(
      std::move(memory), ranks.getRank(), std::move(has_left));
  if (job != nullptr) {
    stop_at_end_ = job->at_end([sums = sums_] { sums->stop(); });
  }
}

at::Tensor SharedMemoryAllReduce::allocate(int64_t numel,
                                           const at::TensorOptions& options) {
  if (!sums_ || !options.device().is_cpu()) {
    return AllReduce::allocate(numel, options);
  }
  has_buckets_ = true;
  const auto memory = sums_->allocate(numel, options);
  if (memory.defined()) {
    return memory;
  }
  TORCH_WARN_ONCE("rank ",
                  group().getRank(),
                  ": Expected shared memory for ",
                  numel,
                  " gradients, but the kernel gave none; the ranks sum them "
                  "over Gloo. Give the job more memory");
  return AllReduce::allocate(numel, options);
}

void SharedMemoryAllReduce::abandon() noexcept {
  AllReduce::abandon();
  if (sums_) {
    sums_->stop();
  }
}

c10::intrusive_ptr<c10d::Work> SharedMemoryAllReduce::start_sum(
    const at::Tensor& payload) {
  if (!has_buckets_ || !payload.is_cpu() || payload.is_sparse()) {
    return AllReduce::start_sum(payload);
  }
  auto* job = detail::monitored_backend_of(group());
  if (job != nullptr) {
    job->before_sum(payload.device());
  }
  try {
    c10::intrusive_ptr<c10d::Work> work = c10::make_intrusive<SharedWork>(
        sums_,
        group(),
        job ? job->timeout() : group().getBackendOptions()->timeout,
        payload);
    if (job != nullptr) {
      job->after_sum(payload, work);
    }
    return work;
  } catch (const std::exception& error) {
    // The start of a sum goes on with the earlier ones, which may fail.
    detail::fail_collective(
        group(), "a sum of gradients", detail::text_of(error));
  }
}

}  // namespace ddp
