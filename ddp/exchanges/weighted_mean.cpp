#include "ddp/exchanges/weighted_mean.h"

#include <cmath>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/job/peers.h"
#include "ddp/job/wait.h"
#include "ddp/tensors/streams.h"

namespace ddp {

WeightedMean::WeightedMean(c10::intrusive_ptr<c10d::Backend> group)
    : WeightedMean(std::make_shared<AllReduce>(group), group) {}

WeightedMean::WeightedMean(std::shared_ptr<Exchange> inner,
                           c10::intrusive_ptr<c10d::Backend> group)
    : ForwardingExchange(std::move(inner), "the weighted gradients"),
      group_(detail::required_group(std::move(group))) {}

void WeightedMean::set_weight(double weight) {
  TORCH_CHECK(std::isfinite(weight) && weight >= 0,
              "Expected the weight of rank ",
              group_->getRank(),
              " to be a number that is not negative, but got ",
              weight);
  weight_ = weight;
}

/// Ignores the number of ranks: the weights determine how many contribute.
double WeightedMean::scale(int ranks) const {
  detail::check_covers(group_->getSize(), ranks);
  return weight_ * inner().scale(group_->getSize());
}

void WeightedMean::start(const GradientBucket& bucket) {
  if (bucket.index == 0) {
    mean_weight_ =
        at::full({},
                 weight_ / group_->getSize(),
                 at::TensorOptions(bucket.payload.device()).dtype(at::kDouble));
    std::vector<at::Tensor> tensors{mean_weight_};
    work_ = group_->allreduce(tensors);
  }
  inner().start(bucket);
}

void WeightedMean::finish(const GradientBucket& bucket) {
  if (bucket.index == 0) {
    const auto work = std::exchange(work_, nullptr);
    detail::wait(work, *group_, "all-reduce of the ranks' weights");
    detail::record_stream(mean_weight_);
    mean_weight_.masked_fill_(mean_weight_ == 0, 1);
  }
  inner().finish(bucket);
  const auto device = bucket.payload.device();
  bucket.payload.div_(
      mean_weight_.to(device, at::kDouble, /*non_blocking=*/!device.is_cpu()));
}

void WeightedMean::abandon() noexcept {
  work_.reset();
  ForwardingExchange::abandon();
}

}  // namespace ddp
