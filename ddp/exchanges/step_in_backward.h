#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/exchanges/forwarding_exchange.h"
#include "ddp/tensors/stepped_in_backward.h"

namespace ddp {

/// Runs the optimizer's step inside `backward()`, one bucket at a time: while
/// one bucket is being exchanged, the parameters of the previous bucket are
/// stepped, with gradients and parameters still in the cache. Only the last
/// bucket is stepped after the pass, and in the first pass usually every
/// bucket. Corresponds to PyTorch's "optimizer in backward" or "hook then
/// optimizer".
///
/// The parameters are equal bit for bit to a step after `backward()` for any
/// optimizer that steps each parameter independently: all optimizers of
/// LibTorch except LBFGS, and the fused ones. Param groups, schedulers and
/// checkpoints of the optimizer work as usual. Passes under a `NoSyncGuard`
/// step nothing.
///
/// Gradient clipping after `backward()` has no effect, because the parameters
/// have been stepped; this cannot be detected. `GradScaler::step` and
/// `unscale_` with this optimizer throw c10::Error, unless the scaler is
/// disabled: the optimizer then steps twice. For both, step after `backward()`
/// instead.
///
/// Goes around an exchange that changes gradients after its inner one
/// (`CastExchange`, `WeightedMean`), which throws c10::Error with a
/// StepInBackward inside.
///
/// Differences to a step after the pass:
/// - A parameter that no rank has used (`find_unused_parameters`, on demand or
///   always) is stepped with the mean of the ranks' remaining `.grad`. After
///   `zero_grad()` that mean is zero, and momentum and weight decay go on.
/// - A parameter that the optimizer lists several times (LibTorch's
///   `parameters()` of a net with a tied weight) is stepped once, with the
///   options of the first group that lists it.
/// - A frozen parameter keeps its value, whatever its `.grad` holds.
/// - A pass that throws may have stepped some parameters.
/// - The graph must not use the value of a parameter in a place that sends the
///   parameter no gradient (`w.detach()`): the parameter may have been stepped
///   when the pass arrives there.
///
/// Threads: as for any exchange, the optimizer is stepped on autograd's
/// threads, one at a time; on a rank without inputs left, on the thread of
/// `Join::finish`. Do not use the optimizer while a pass runs.
///
/// Example:
/// @code
///   torch::optim::AdamW optimizer(net->parameters(), 3e-4);
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().exchange(
///           std::make_shared<ddp::StepInBackward>(optimizer,
///                                                 ddp::process_group())));
///   for (auto& batch : *loader) {
///     optimizer.zero_grad();
///     loss_of(model, batch).backward();  // steps
///   }
/// @endcode
class StepInBackward : public ForwardingExchange {
 public:
  /// Steps after an all-reduce over the group.
  /// @param optimizer  must outlive the model. A parameter is stepped if it is
  ///   in the optimizer and the model averages its gradient: parameters of
  ///   other modules, and ignored ones, need an optimizer of their own.
  /// @param group  the ranks.
  /// @throws c10::Error if `group` is null, and for LBFGS, a
  ///   ZeroRedundancyOptimizer and a PostLocalSGDOptimizer, which step all
  ///   parameters together.
  StepInBackward(torch::optim::Optimizer& optimizer,
                 c10::intrusive_ptr<c10d::Backend> group);
  /// @param inner  exchange of the gradients.
  /// @throws c10::Error as above, or if `inner` is null.
  StepInBackward(torch::optim::Optimizer& optimizer,
                 std::shared_ptr<Exchange> inner);

  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;

 private:
  void index_param_groups();
  void finish_and_step(const GradientBucket& bucket);
  void step_bucket(const GradientBucket& bucket);

  torch::optim::Optimizer& optimizer_;
  std::unordered_map<const c10::TensorImpl*, size_t>
      group_of_;                           // param group, this pass
  std::optional<GradientBucket> started_;  // last started, not yet finished
  size_t finished_ = 0;                    // number of buckets in this pass
  detail::SteppedInBackward stepped_;
};

}  // namespace ddp
