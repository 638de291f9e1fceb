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

/// The optimizer's step inside `backward()`, a bucket at a time: while the
/// gradients of one bucket are on their way, the parameters of the one before
/// are stepped, with gradients and parameters still in the cache. What remains
/// after the pass is the last bucket's. What PyTorch calls an optimizer in
/// backward, or hook-then-optimizer.
///
/// The parameters end up the same bit for bit as by a step after `backward()`,
/// with any optimizer that steps each parameter by itself: all of LibTorch's
/// but LBFGS, and the fused ones. Param groups, schedulers and checkpoints are
/// those of the optimizer. Passes under a `NoSyncGuard` step nothing.
///
/// Clipping after `backward()` has no effect here, because the parameters have
/// stepped; no error can say so. `GradScaler::step` with this optimizer is an
/// error. Step after `backward()` for both.
///
/// Beside a step after the pass:
/// - A parameter that no rank has used (`find_unused_parameters`, on demand or
///   always) is stepped with the mean of what the ranks' `.grad` still hold.
///   After `zero_grad()` that is zero, and momentum and weight decay go on.
/// - A frozen parameter stays as it is, whatever its `.grad` holds.
/// - A pass that ends with an error may have stepped.
///
/// Threads: as any exchange, so the optimizer is stepped on autograd's threads,
/// one at a time; leave it alone while a pass runs.
///
/// Example:
/// @code
///   torch::optim::AdamW optimizer(net->parameters(), 3e-4);
///   auto stepper = std::make_shared<ddp::StepInBackward>(optimizer,
///                                                        ddp::process_group());
///   ddp::DistributedDataParallel model(
///       net, ddp::DistributedDataParallelOptions().exchange(stepper));
///   for (auto& batch : *loader) {
///     optimizer.zero_grad();
///     loss_of(model, batch).backward();  // steps
///     stepper->step();  // in a world of one, where backward() has not
///   }
/// @endcode
class StepInBackward : public ForwardingExchange {
 public:
  /// By an all-reduce over the group, or null in a world of one.
  /// @param optimizer  of the wrapped module's parameters; must outlive the
  ///   model. Parameters that it does not have are not stepped.
  /// @throws c10::Error for LBFGS, a ZeroRedundancyOptimizer and a
  ///   PostLocalSGDOptimizer, whose step is that of all parameters at once.
  StepInBackward(torch::optim::Optimizer& optimizer,
                 c10::intrusive_ptr<c10d::Backend> group);
  /// @param inner  how the gradients are exchanged.
  StepInBackward(torch::optim::Optimizer& optimizer,
                 std::shared_ptr<Exchange> inner);

  /// Steps the optimizer in a world of one, where a model has no exchange; does
  /// nothing while a model with other ranks uses this one, alone or within
  /// another exchange. Call it once a step: not after passes under a
  /// `NoSyncGuard`.
  void step();

  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;

 private:
  void note_groups();
  void finish_and_step(const GradientBucket& bucket);
  void step_bucket(const GradientBucket& bucket);

  torch::optim::Optimizer& optimizer_;
  std::unordered_map<const c10::TensorImpl*, size_t> group_of_;  // in this pass
  std::optional<GradientBucket> started_;  // last, and not finished
  size_t finished_ = 0;                    // buckets of this pass
  detail::SteppedInBackward stepped_;
};

}  // namespace ddp
