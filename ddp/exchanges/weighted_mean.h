#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/forwarding_exchange.h"

namespace ddp {

/// The mean of gradients by weights that each rank gives for each step: the sum
/// of weight times gradient, divided by the sum of weights. For batches of
/// unequal size: where the loss is a mean over a rank's own tokens and the
/// weight is their number, the result is the gradient of the mean over all
/// ranks' tokens.
///
/// The weighing costs nothing, it is done as gradients go into their buckets;
/// the division is one more pass over them. The weights travel in an all-reduce
/// of one number beside the first bucket. Where all weights are zero, so are
/// the gradients. A rank that has no input left (`Join`) sets 0.
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
  /// By all-reduces over the group.
  explicit WeightedMean(c10::intrusive_ptr<c10d::Backend> group);
  /// @param inner  what averages the weighted gradients, without weights of its
  ///   own: a `CastExchange`, say. One that keeps a part of them for a later
  ///   step (`PowerSGD`) keeps it with the weight of this one.
  WeightedMean(std::shared_ptr<Exchange> inner,
               c10::intrusive_ptr<c10d::Backend> group);

  /// This rank's weight, for passes that begin from now on; 1 until it is set.
  /// @throws c10::Error for one that is negative or not finite.
  void set_weight(double weight);

  double scale(int ranks) const override;
  bool sums_every_element() const override { return false; }
  /// The weights say how many.
  int min_group_size() const override { return 0; }
  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;

 private:
  const at::Tensor& mean_weight_on(c10::Device device);

  c10::intrusive_ptr<c10d::Backend> group_;
  double weight_ = 1;
  at::Tensor mean_weight_;  // of all ranks, from the first finish on
  std::vector<at::Tensor> mean_weights_;  // the same, one a device
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace ddp
