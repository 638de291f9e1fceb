#include "ddp/exchanges/all_reduce.h"

#include <utility>

#include "ddp/detail/wait.h"

namespace ddp {

AllReduce::AllReduce(c10::intrusive_ptr<c10d::Backend> group)
    : group_(std::move(group)) {}

bool AllReduce::sums_every_element() const {
  return true;
}

std::string AllReduce::refuses_sparse() const {
  return group_->getBackendName() == "nccl"
             ? "Expected dense gradients with NCCL, which cannot all-reduce "
               "sparse ones"
             : "";
}

void AllReduce::start(const GradientBucket& bucket) {
  works_.resize(bucket.count);
  std::vector<at::Tensor> tensors{bucket.payload};
  works_[bucket.index] = group_->allreduce(tensors);
}

void AllReduce::finish(const GradientBucket& bucket) {
  const auto work = std::exchange(works_[bucket.index], nullptr);
  detail::wait(work,
               *group_,
               "all-reduce of gradient bucket " +
                   std::to_string(bucket.index + 1) + " of " +
                   std::to_string(bucket.count));
}

}  // namespace ddp
