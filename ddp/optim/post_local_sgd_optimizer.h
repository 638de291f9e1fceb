#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "ddp/optim/model_averager.h"
#include "ddp/optim/zero_redundancy_optimizer.h"

namespace ddp {

namespace detail {

/// Base of every `PostLocalSGDOptimizer`. Gives code that handles any optimizer
/// access to its averager, and has the state of both.
class AveragingOptimizer : public Stateful {
 public:
  /// @throws c10::Error if `averager` is null.
  explicit AveragingOptimizer(std::shared_ptr<ModelAverager> averager);

  /// Returns the averager; never null.
  const std::shared_ptr<ModelAverager>& averager() const { return averager_; }

  /// Returns the optimizer's state with the averager's entries added, as
  /// PyTorch's PostLocalSGDOptimizer.state_dict().
  c10::IValue state_dict() const override;
  void check_state_dict(const c10::IValue& state) const override;
  void load_state_dict(const c10::IValue& state) override;

 protected:
  /// Writes the averager's state into LibTorch's archive of the optimizer.
  void save_averager(torch::serialize::OutputArchive& archive) const;
  /// Reads it. Without it in the archive, warns and starts the averager at step
  /// 0.
  void load_averager(torch::serialize::InputArchive& archive);

 private:
  std::shared_ptr<ModelAverager> averager_;
};

}  // namespace detail

/// An optimizer that calls a `ModelAverager` after each of its steps. Makes
/// post-local SGD a single call, like PyTorch's PostLocalSGDOptimizer.
/// Schedulers, `GradScaler` and `Checkpoint` handle it like the plain
/// optimizer.
///
/// torch::save, torch::load and `Checkpoint` include the averager's state, so a
/// resumed training averages in the same steps. A `Checkpoint` has the
/// optimizer's state of rank 0: all ranks go on with its momentum. A file of
/// the plain optimizer loads with a warning, and the averager then starts at
/// step 0.
///
/// With a `GradScaler` set `GradScalerOptions::process_group`; without it the
/// `step` of an enabled scaler throws if the averager has other ranks.
///
/// @tparam Optimizer  torch::optim::SGD, ddp::FusedAdamW, ... with any
///   constructor; no ZeroRedundancyOptimizer. The averager averages the
///   optimizer's parameters that require a gradient, without those that a
///   wrapper ignores.
///
/// Example:
/// @code
///   ddp::PostLocalSGDOptimizer<torch::optim::SGD> local(
///       std::make_shared<ddp::ModelAverager>(
///           ddp::ModelAveragerOptions(4).warmup_steps(100)),
///       model->parameters(),
///       0.1);
///   local.zero_grad();
///   loss_of(model->forward(data), target).backward();
///   local.step();
/// @endcode
template <typename Optimizer>
class PostLocalSGDOptimizer : public Optimizer,
                              public detail::AveragingOptimizer {
  static_assert(!std::is_base_of_v<ZeroRedundancyOptimizer, Optimizer>,
                "a ZeroRedundancyOptimizer steps with all ranks; average by a "
                "ModelAverager of its own");

 public:
  /// @param averager   must not be null. It counts the steps of every optimizer
  ///   that has it, so give each optimizer its own.
  /// @param arguments  constructor arguments of `Optimizer`.
  /// @throws c10::Error if `averager` is null.
  template <typename... Arguments>
  explicit PostLocalSGDOptimizer(std::shared_ptr<ModelAverager> averager,
                                 Arguments&&... arguments)
      : Optimizer(std::forward<Arguments>(arguments)...),
        AveragingOptimizer(std::move(averager)) {}

  /// Steps the optimizer, then calls `ModelAverager::average_parameters`.
  /// Collective in the steps in which the averager averages.
  at::Tensor step(typename torch::optim::Optimizer::LossClosure closure =
                      nullptr) override {
    auto loss = Optimizer::step(std::move(closure));
    std::vector<at::Tensor> parameters;
    for (const auto& group : this->param_groups()) {
      parameters.insert(
          parameters.end(), group.params().begin(), group.params().end());
    }
    averager()->average_parameters(parameters);
    return loss;
  }

  /// Saves the state of the optimizer and of the averager.
  void save(torch::serialize::OutputArchive& archive) const override {
    Optimizer::save(archive);
    save_averager(archive);
  }

  /// Loads both states. Without an averager's state in the archive, warns and
  /// starts the averager at step 0.
  void load(torch::serialize::InputArchive& archive) override {
    Optimizer::load(archive);
    load_averager(archive);
  }
};

}  // namespace ddp
