#include "ddp/exchanges/all_reduce.h"

#include <typeinfo>
#include <utility>

#include "ddp/exchanges/shared_memory_all_reduce.h"
#include "ddp/job/peers.h"
#include "ddp/job/wait.h"

namespace ddp {

AllReduce::AllReduce(c10::intrusive_ptr<c10d::Backend> group,
                     const AllReduceOptions& options)
    : group_(detail::required_group(std::move(group))), options_(options) {}

double AllReduce::scale(int ranks) const {
  detail::check_covers(group_->getSize(), ranks);
  return options_.mean() ? 1.0 / ranks : 1;
}

bool detail::carries_marks(const Exchange& exchange, int ranks) {
  if (typeid(exchange) != typeid(AllReduce) &&
      typeid(exchange) != typeid(SharedMemoryAllReduce)) {
    return false;
  }
  return static_cast<const AllReduce&>(exchange).group_->getSize() >= ranks;
}

std::string AllReduce::refuses_sparse() const {
  return group_->getBackendName() == "nccl"
             ? "Expected dense gradients with NCCL, which cannot all-reduce "
               "sparse ones"
             : "";
}

c10::intrusive_ptr<c10d::Work> AllReduce::start_sum(const at::Tensor& payload) {
  std::vector<at::Tensor> tensors{payload};
  return group_->allreduce(tensors);
}

void AllReduce::start(const GradientBucket& bucket) {
  works_.resize(bucket.count);
  works_[bucket.index] = start_sum(bucket.payload);
}

void AllReduce::finish(const GradientBucket& bucket) {
  const auto work = std::exchange(works_[bucket.index], nullptr);
  detail::wait(work, *group_, "all-reduce of " + bucket.text());
}

}  // namespace ddp
