#include "ddp/exchanges/shared_memory_all_reduce.h"

#include <chrono>
#include <exception>
#include <utility>

#include "ddp/job/current_job.h"
#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/wait.h"
#include "ddp/shared_memory/share_memory.h"
#include "ddp/shared_memory/shared_sums.h"

namespace ddp {
namespace {

/// A sum in shared memory. The constructor and `wait` compute this rank's part.
class SharedWork : public c10d::Work {
 public:
  SharedWork(std::shared_ptr<detail::SharedSums> sums,
             int rank,
             std::chrono::milliseconds timeout,
             const at::Tensor& tensor,
             uint64_t collective,
             bool is_scattered)
      : Work(rank,
             c10d::OpType::ALLREDUCE,
             "ddp:all_reduce",
             std::vector<at::Tensor>{tensor}),
        sums_(std::move(sums)),
        timeout_(timeout),
        number_(sums_->start(tensor, collective, is_scattered)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    try {
      sums_->finish(number_, timeout == kNoTimeout ? timeout_ : timeout);
    } catch (...) {
      finish(std::current_exception());
      throw;
    }
    finish();
    return true;
  }

 private:
  const std::shared_ptr<detail::SharedSums> sums_;
  const std::chrono::milliseconds timeout_;
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
  sums_ =
      std::make_shared<detail::SharedSums>(std::move(memory), ranks.getRank());
  if (auto* job = detail::monitored_backend_of(ranks)) {
    number_ = job->number_exchange();
    stop_at_end_ = job->at_end([sums = sums_] { sums->stop(); });
  }
}

at::Tensor SharedMemoryAllReduce::allocate(int64_t numel,
                                           const at::TensorOptions& options) {
  if (!sums_ || !options.device().is_cpu()) {
    return AllReduce::allocate(numel, options);
  }
  auto memory = sums_->allocate(numel, options);
  TORCH_CHECK(memory.defined(),
              "rank ",
              group().getRank(),
              ": Expected shared memory for ",
              numel,
              " gradients, but the kernel gave none; give the job more memory, "
              "or sum over Gloo by DDP_SHARED_MEMORY=0");
  return memory;
}

void SharedMemoryAllReduce::abandon() noexcept {
  AllReduce::abandon();
  if (sums_) {
    sums_->stop();
  }
}

c10::intrusive_ptr<c10d::Work> SharedMemoryAllReduce::start_sum(
    const at::Tensor& payload) {
  if (!sums_ || !sums_->has(payload)) {
    return AllReduce::start_sum(payload);
  }
  return start_shared_sum(payload, /*is_scattered=*/false);
}

c10::intrusive_ptr<c10d::Work> SharedMemoryAllReduce::start_shared_sum(
    const at::Tensor& tensor, bool is_scattered) {
  auto* job = detail::monitored_backend_of(group());
  if (job != nullptr) {
    job->before_sum(tensor.device());
  }
  try {
    c10::intrusive_ptr<c10d::Work> work = c10::make_intrusive<SharedWork>(
        sums_,
        group().getRank(),
        job ? job->timeout() : group().getBackendOptions()->timeout,
        tensor,
        job ? job->started() + 1 : 0,
        is_scattered);
    if (job != nullptr) {
      job->after_sum(number_, tensor, work);
    }
    return work;
  } catch (const std::exception& error) {
    // The start of a sum also continues earlier sums, which may fail.
    detail::fail_collective(
        group(), "a sum of gradients", detail::text_of(error));
  }
}

}  // namespace ddp
