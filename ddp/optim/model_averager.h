#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/checkpoint/state/stateful.h"

namespace ddp {

/// Options of `ModelAverager`; the same on all ranks.
///
/// Example: local SGD that begins after 100 steps.
/// @code
///   auto local_sgd = ddp::ModelAveragerOptions(4).warmup_steps(100);
/// @endcode
struct ModelAveragerOptions {
  /// @param period         number of steps between two averagings; positive.
  /// @param process_group  null for all ranks.
  ModelAveragerOptions(  // NOLINT
      int64_t period,
      c10::intrusive_ptr<c10d::Backend> process_group = nullptr)
      : period_(period), process_group_(std::move(process_group)) {}

  /// Number of steps between two averagings, counted from the end of the
  /// warm-up: with warm-up 5 and period 4 the steps 5, 9, 13, ... average,
  /// counted from 0.
  TORCH_ARG(int64_t, period);
  /// The ranks that average; null for all ranks.
  TORCH_ARG(c10::intrusive_ptr<c10d::Backend>, process_group);
  /// Number of steps at the beginning in which this object averages no
  /// parameters and the program averages gradients. Not negative.
  TORCH_ARG(int64_t, warmup_steps) = 0;
};

/// Averages the ranks' parameters every few optimizer steps, instead of their
/// gradients in each step: local SGD. Call `average_parameters` after each
/// step. For groups of ranks that average often, and all ranks seldom
/// (PyTorch's HierarchicalModelAverager), call two averagers after each step,
/// the group's averager first.
///
/// The parameters must be equal on all ranks at first
/// (`DistributedDataParallel` ensures this). Between two averagings each rank
/// trains with its own gradients, preferably under a `NoSyncGuard`: a pass then
/// does not communicate and no rank waits for a slower one. `NoExchange` still
/// makes an all-reduce of a few bytes over the wrapper's ranks and a broadcast
/// of the buffers in each pass. To average the gradients of one host's ranks
/// from a step on, give the wrapper a group of these ranks there
/// (`update_process_group`).
///
/// With a `GradScaler` set `GradScalerOptions::process_group`, because the
/// gradients differ between ranks here, so that a rank could skip a step alone.
/// Call `average_parameters` after each `GradScaler::step`, also a skipped one.
///
/// A `Join` refuses an averager with other ranks.
///
/// Between two averagings the ranks' parameters differ, so save a checkpoint
/// after a step in which all ranks have averaged. Buffers are never averaged;
/// under a `NoSyncGuard` each rank keeps its own, and a checkpoint holds rank
/// 0's. The state of the program's optimizer is never averaged and stays
/// different on each rank.
///
/// Thread contract: one thread. Only `average_parameters` is collective.
///
/// Example: post-local SGD. Gradients are averaged in 100 steps; afterwards
/// each rank trains alone, and the parameters are averaged every 4 steps.
/// @code
///   ddp::ModelAverager averager(
///       ddp::ModelAveragerOptions(4).warmup_steps(100));
///   for (int64_t step = 0; step < 1000; ++step) {
///     optimizer.zero_grad();
///     std::optional<ddp::NoSyncGuard> alone;
///     if (step >= 100) alone.emplace(*model);
///     loss_of(model->forward(batch.data), batch.target).backward();
///     optimizer.step();
///     averager.average_parameters(model->parameters());
///   }
/// @endcode
///
/// Sources: PeriodicModelAverager of PyTorch 2.11; Lin et al., "Don't Use Large
/// Mini-Batches, Use Local SGD", ICLR 2020.
class ModelAverager : public Stateful {
 public:
  /// @throws c10::Error if the period is not positive, if warmup_steps is
  ///   negative, or if there is no process group although WORLD_SIZE is above
  ///   1.
  explicit ModelAverager(ModelAveragerOptions options);

  /// Counts a step and averages the parameters if a period ends: one all-reduce
  /// for each dtype and device. The mean is computed in this dtype: each rank
  /// divides its values by the number of ranks before the sum. Call it after
  /// each step of the optimizer, on every rank. Collective if it averages.
  /// @param parameters  the same in each call. Parameters that require no
  ///   gradient, and parameters that a wrapper ignores
  ///   (`params_and_buffers_to_ignore`), stay as they are.
  /// @returns true if the other parameters have been averaged, in place, or
  ///   would have been with other ranks: a rank alone sends nothing.
  /// @throws c10::Error if a rank has left, if the group's time-out is over, or
  ///   in a `Join` in which ranks continue without inputs. With NCCL the call
  ///   only queues the averaging: the next collective of the group throws for a
  ///   rank that leaves later, and the parameters are then undefined.
  bool average_parameters(const std::vector<at::Tensor>& parameters);

  /// Returns the number of calls of `average_parameters` so far.
  int64_t steps() const { return steps_; }

  /// Returns the number of steps, for `Checkpoint::add`.
  c10::IValue state_dict() const override;
  /// @throws c10::Error if the number of steps is missing or negative.
  void check_state_dict(const c10::IValue& state) const override;
  void load_state_dict(const c10::IValue& state) override;

 private:
  ModelAveragerOptions options_;
  int64_t steps_ = 0;
};

}  // namespace ddp
