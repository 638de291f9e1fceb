#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/sgd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/checkpoint/state/stateful.h"

namespace ddp {

/// A group of ranks, and the period in which they average their parameters.
struct AveragingLevel {
  /// Number of steps between two averagings; positive.
  int64_t period;
  /// This rank's group; null for all ranks.
  c10::intrusive_ptr<c10d::Backend> process_group = nullptr;
};

/// Options of `ModelAverager`; the same on all ranks.
///
/// Example: local SGD, and two groups of 8 ranks that average often, while all
/// 16 ranks average seldom.
/// @code
///   auto lower = ddp::new_group({0, 1, 2, 3, 4, 5, 6, 7});
///   auto upper = ddp::new_group({8, 9, 10, 11, 12, 13, 14, 15});
///   auto local_sgd = ddp::ModelAveragerOptions(4).warmup_steps(100);
///   auto hierarchical =
///       ddp::ModelAveragerOptions({{4, lower ? lower : upper}, {16}})
///           .warmup_steps(100);
/// @endcode
struct ModelAveragerOptions {
  /// @param period  number of steps between two averagings; positive.
  ModelAveragerOptions(  // NOLINT
      int64_t period,
      c10::intrusive_ptr<c10d::Backend> process_group = nullptr)
      : levels_{{period, std::move(process_group)}} {}
  /// @param levels  in ascending order of their periods; the group of a level
  ///   contains the groups of the levels before it.
  ModelAveragerOptions(std::vector<AveragingLevel> levels)  // NOLINT
      : levels_(std::move(levels)) {}

  /// The averaging levels. If the periods of several levels end with a step,
  /// only the last of these levels averages. The period of a single level is
  /// counted from the end of the warm-up, as by PyTorch's
  /// PeriodicModelAverager: with warm-up 5 and period 4 the steps 5, 9, 13, ...
  /// average, counted from 0. Periods of several levels are counted from the
  /// first step, as by PyTorch's HierarchicalModelAverager: 8, 12, 16, ...
  TORCH_ARG(std::vector<AveragingLevel>, levels);
  /// Number of steps at the beginning in which this object averages no
  /// parameters and the program averages gradients. Not negative.
  TORCH_ARG(int64_t, warmup_steps) = 0;
  /// Options of the outer optimizer of DiLoCo, an SGD; std::nullopt for none.
  /// It steps at the end of each round, which is a period of the last level.
  /// Its gradient is the parameters at the beginning of the round minus their
  /// mean over the ranks at its end. All periods end after the steps
  /// period - 1, 2 period - 1, ..., counted from 0. warmup_steps must be 0:
  /// construct the averager after a warm-up. The paper uses
  /// torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true).
  TORCH_ARG(std::optional<torch::optim::SGDOptions>, outer) = std::nullopt;
};

/// Averages the ranks' parameters every few optimizer steps, instead of their
/// gradients in each step: local SGD, hierarchical SGD and DiLoCo. Call
/// `average_parameters` after each step, or use a `PostLocalSGDOptimizer`,
/// whose step calls it.
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
/// With a `GradScaler` set `GradScalerOptions::process_group`. The gradients
/// differ between ranks here, so a rank could skip a step, and the averaging
/// after it, alone. Without the group the `step` of an enabled scaler throws
/// for a `PostLocalSGDOptimizer` with other ranks.
///
/// A `Join` refuses an averager with other ranks.
///
/// Between two averagings of the last level the ranks' parameters differ, so
/// save a checkpoint after a step in which the period of the last level ends.
/// Buffers are never averaged; under a `NoSyncGuard` each rank keeps its own,
/// and a checkpoint holds those of rank 0. The state of the program's optimizer
/// is never averaged and stays different on each rank.
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
/// Example: DiLoCo with rounds of 500 steps.
/// @code
///   ddp::ModelAverager outer(
///       ddp::ModelAveragerOptions(500).outer(
///           torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true)),
///       model->parameters());
/// @endcode
///
/// Sources: torch.distributed.algorithms.model_averaging of PyTorch 2.11; Lin
/// et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020; Douillard
/// et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
/// 2023.
class ModelAverager : public Stateful {
 public:
  /// @param parameters  only for an outer optimizer: the parameters that will
  ///   be averaged, in the same order, before the first step. The averager
  ///   keeps a copy of each parameter that requires a gradient and, if the
  ///   outer optimizer has a momentum, a momentum of the same size.
  /// @throws c10::Error if there is no level, the periods are not positive and
  ///   ascending, a group has fewer ranks than the group before it,
  ///   warmup_steps is negative, the outer optimizer has a warm-up or no
  ///   parameters, the SGD refuses its options (nesterov needs a momentum), or
  ///   there is no process group although WORLD_SIZE is above 1.
  explicit ModelAverager(ModelAveragerOptions options,
                         const std::vector<at::Tensor>& parameters = {});

  /// Counts a step and averages the parameters if a period ends: one all-reduce
  /// for each dtype and device, then the outer step. The mean is computed in
  /// this dtype: each rank divides its values by the number of ranks before the
  /// sum. Call it after each step of the optimizer, on every rank. Collective
  /// if it averages.
  /// @param parameters  the same in each call. Parameters that require no
  ///   gradient, and parameters that a wrapper ignores
  ///   (`params_and_buffers_to_ignore`), stay as they are.
  /// @returns true if the other parameters have been averaged at any level, in
  ///   place, or would have been with other ranks: a rank alone sends nothing.
  /// @throws c10::Error if a rank has left, if the group's time-out is over, if
  ///   the outer optimizer was made for other parameters or in another order
  ///   (checked if it averages), or in a `Join` in which ranks continue without
  ///   inputs. With NCCL the call only queues the averaging: the next
  ///   collective of the group throws for a rank that leaves later, and the
  ///   parameters are then undefined.
  bool average_parameters(const std::vector<at::Tensor>& parameters);

  /// Returns the number of calls of `average_parameters` so far.
  int64_t steps() const { return steps_; }
  /// Sets the number of calls, to resume a training.
  /// @throws c10::Error if it is negative.
  void set_steps(int64_t steps);

  /// Returns the parameters at the beginning of the round, in the order of the
  /// parameters that require a gradient. Empty without an outer optimizer.
  const std::vector<at::Tensor>& outer_parameters() const { return outer_; }
  /// Returns the outer optimizer; null if there is none.
  torch::optim::SGD* outer_optimizer() const { return optimizer_.get(); }

  /// Returns true if any level has other ranks than this one.
  bool has_peers() const;

  /// Returns the number of steps and, with an outer optimizer, the outer
  /// parameters and the outer optimizer's state, for `Checkpoint::add`.
  c10::IValue state_dict() const override;
  /// @throws c10::Error if there is another number of outer parameters or
  ///   another shape, or if there is no number of steps but an outer optimizer.
  void check_state_dict(const c10::IValue& state) const override;
  /// Continues from a state. Without a number of steps in it, as in a file of a
  /// plain optimizer, warns and begins with step 0. The options of the outer
  /// optimizer become those of the state.
  void load_state_dict(const c10::IValue& state) override;

 private:
  void step_outer();

  ModelAveragerOptions options_;
  int64_t steps_ = 0;
  std::vector<at::Tensor> averaged_;  // only with an outer optimizer
  std::vector<at::Tensor> outer_;     // copies of them
  std::unique_ptr<torch::optim::SGD> optimizer_;
};

}  // namespace ddp
