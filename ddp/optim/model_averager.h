#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp {

/// A group of ranks and how often its ranks average their parameters.
struct AveragingLevel {
  int64_t period;
  /// This rank's group. Null: all ranks.
  c10::intrusive_ptr<c10d::Backend> process_group = nullptr;
};

/// Which step the periods of a `ModelAverager` are counted from. With warm-up 5
/// and period 4 the steps that average are, counted from 0:
enum class AveragingOrigin {
  warmup_end,  ///< 5, 9, 13, ...: PyTorch's PeriodicModelAverager
  first_step,  ///< 8, 12, 16, ...: PyTorch's HierarchicalModelAverager
};

/// Options of `ModelAverager`; the same on all ranks.
///
/// Example, local SGD, and groups of 8 ranks of which all 16 average seldom:
/// @code
///   auto lower = ddp::new_group({0, 1, 2, 3, 4, 5, 6, 7});
///   auto upper = ddp::new_group({8, 9, 10, 11, 12, 13, 14, 15});
///   auto local_sgd = ddp::ModelAveragerOptions(4).warmup_steps(100);
///   auto hierarchical =
///       ddp::ModelAveragerOptions({{4, lower ? lower : upper}, {16}})
///           .warmup_steps(100)
///           .origin(ddp::AveragingOrigin::first_step);
/// @endcode
struct ModelAveragerOptions {
  /// @param period  steps from one averaging to the next; positive.
  ModelAveragerOptions(  // NOLINT
      int64_t period,
      c10::intrusive_ptr<c10d::Backend> process_group = nullptr)
      : levels_{{period, std::move(process_group)}} {}
  /// @param levels  the shortest period first; each group contains the groups
  ///   of the levels before it.
  ModelAveragerOptions(std::vector<AveragingLevel> levels)  // NOLINT
      : levels_(std::move(levels)) {}

  /// Of the levels whose period ends with a step, the last one averages.
  TORCH_ARG(std::vector<AveragingLevel>, levels);
  /// Steps before the first averaging, in which gradients are averaged.
  TORCH_ARG(int64_t, warmup_steps) = 0;
  TORCH_ARG(AveragingOrigin, origin) = AveragingOrigin::warmup_end;
  /// DiLoCo: an outer SGD that steps whenever the last level averages. Its
  /// gradient is the mean change of the parameters since its previous step. A
  /// round is then `period` steps long and ends after the steps period - 1,
  /// 2 period - 1, ..., counted from 0; warmup_steps must be 0. The paper's
  /// values: torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true).
  TORCH_ARG(std::optional<torch::optim::SGDOptions>, outer) = std::nullopt;
};

/// Averages the ranks' parameters every few steps of the optimizer, instead of
/// their gradients in each step: local SGD, hierarchical SGD and DiLoCo. A
/// `PostLocalSGDOptimizer` calls it in its step.
///
/// The parameters must be equal on all ranks at first
/// (`DistributedDataParallel` sees to that), and the ranks train with their own
/// gradients in between: best under a `NoSyncGuard`, where a pass communicates
/// nothing and no rank waits for a slower one. `NoExchange`, also within a
/// `SwitchExchange`, still makes an all-reduce of a few bytes over the
/// wrapper's ranks in each pass. Gradients of one host's ranks are averaged by
/// a wrapper over `process_group(ranks_of_this_host)`.
///
/// With a `GradScaler` set `GradScalerOptions::process_group`. Gradients differ
/// between ranks here; without the group a rank that skips a step alone also
/// skips the collectives of a `PostLocalSGDOptimizer`.
///
/// In a `Join` every pass must be reduced, by a `NoExchange` for example, and
/// `finish` gets a function that makes the optimizer's step and calls
/// `average_parameters`.
///
/// Between two averagings the ranks' parameters differ, so save a checkpoint
/// after a call that returned true. The state of the program's optimizer stays
/// each rank's own.
///
/// Example, post-local SGD: gradients are averaged in 100 steps; from then on
/// each rank trains alone, and every 4 steps the parameters are averaged:
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
/// Example, DiLoCo with rounds of 500 steps:
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
class ModelAverager {
 public:
  /// @param parameters  for an outer optimizer: those that will be averaged,
  ///   before the first step. It keeps a copy of each that requires a gradient
  ///   and a momentum of the same size.
  /// @throws c10::Error when there is no level, the periods are not positive
  ///   and ascending, a group has fewer ranks than the one before, warmup_steps
  ///   is negative, or the outer optimizer has a warm-up or no parameters.
  explicit ModelAverager(ModelAveragerOptions options,
                         const std::vector<at::Tensor>& parameters = {});

  /// Call it after each step of the optimizer, on every rank. Returns whether
  /// the parameters that require a gradient have been averaged, in place: an
  /// all-reduce for each dtype and device, and then the outer step.
  /// @throws c10::Error when a rank has left, when the outer optimizer was made
  ///   for other parameters, and in a `Join` when the last pass was not reduced
  ///   or a rank without inputs has no function.
  bool average_parameters(const std::vector<at::Tensor>& parameters);

  /// Number of calls so far.
  int64_t steps() const { return steps_; }
  /// Continues after so many calls, where a training is resumed.
  /// @throws c10::Error when it is negative.
  void set_steps(int64_t steps);

  /// Parameters at the beginning of the round, in the order of those that
  /// require a gradient. Empty without an outer optimizer.
  const std::vector<at::Tensor>& outer_parameters() const { return outer_; }
  /// Null without an outer optimizer.
  torch::optim::SGD* outer_optimizer() const { return optimizer_.get(); }

  /// Whether a level has other ranks than this one.
  bool has_peers() const;

  /// torch::save's and torch::load's: steps, outer parameters and momentum.
  /// @throws c10::Error for outer parameters of other shapes.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  void step_outer(const std::vector<at::Tensor>& averaged);

  ModelAveragerOptions options_;
  int64_t steps_ = 0;
  std::vector<at::Tensor> outer_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
};

}  // namespace ddp
