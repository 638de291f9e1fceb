#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/forwarding_exchange.h"

namespace ddp {

/// Averages gradients with weights that each rank sets for each step: the sum
/// of weight times gradient, divided by the sum of weights. For batches of
/// unequal size: if the loss is a mean over a rank's own tokens and the weight
/// is their number, the result is the gradient of the mean over the tokens of
/// all ranks.
///
/// The weighting costs nothing, since it is applied while gradients are copied
/// into their buckets; the division is one more pass over them. The weights are
/// summed by an all-reduce of one number beside the first bucket, and another
/// one at the end of the pass, of a few elements, carries the ranks' marks. If
/// all weights are zero, the gradients are zero. A weight of 0 does not hide
/// inf or NaN in the gradients of its rank: all ranks get NaN. In a `Join` a
/// rank without inputs left calls `set_weight(0)` before `Join::finish`;
/// otherwise its last weight counts in the sum of weights. The weight of a
/// reduced pass counts for all of `.grad`, also for the gradients that passes
/// under a `NoSyncGuard` have left there.
///
/// Example:
/// @code
///   auto mean = std::make_shared<ddp::WeightedMean>(ddp::process_group());
///   ddp::DistributedDataParallel model(
///       net, ddp::DistributedDataParallelOptions().exchange(mean));
///   for (...) {
///     mean->set_weight(batch.target.numel());
///     torch::nll_loss(model->forward(batch.data), batch.target).backward();
///   }
/// @endcode
class WeightedMean : public ForwardingExchange {
 public:
  /// Sums the weighted gradients with an `AllReduce` over the group.
  /// @throws c10::Error if `group` is null.
  explicit WeightedMean(c10::intrusive_ptr<c10d::Backend> group);
  /// @param inner  averages the weighted gradients and has no weights of its
  ///   own, for example a `CastExchange`. `inner` gets the gradients times the
  ///   weight times its own `scale`: times weight / ranks for an `AllReduce`,
  ///   times the weight for an exchange that divides itself (`PowerSGD`,
  ///   `HookExchange`). Large weights make this inf in kHalf. An exchange
  ///   that keeps a part of the gradients for a later step (`PowerSGD`) keeps
  ///   it multiplied by the weight of this step.
  /// @param group  its ranks.
  /// @throws c10::Error if `inner` or `group` is null.
  WeightedMean(std::shared_ptr<Exchange> inner,
               c10::intrusive_ptr<c10d::Backend> group);

  /// Sets this rank's weight for passes that begin from now on; not to be
  /// called during a pass. The initial weight is 1.
  /// @throws c10::Error if the weight is negative or not finite.
  void set_weight(double weight);

  /// Returns the weight times the inner exchange's factor for all ranks of the
  /// group, for any value of `ranks`.
  double scale(int ranks) const override;
  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;

 private:
  c10::intrusive_ptr<c10d::Backend> group_;
  double weight_ = 1;
  at::Tensor mean_weight_;  // over ranks, after `finish` of bucket 0
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace ddp
