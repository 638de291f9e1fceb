#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/sgd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/optim/model_averager.h"

namespace ddp {

/// Options of `DiLoCo`; the defaults are the paper's. The same on all ranks.
///
/// Example:
/// @code
///   ddp::DiLoCo outer(model->parameters(),
///                     ddp::DiLoCoOptions(500).learning_rate(0.4));
/// @endcode
struct DiLoCoOptions {
  /// @param period  steps of the inner optimizer in a round; positive.
  DiLoCoOptions(int64_t period) : period_(period) {}  // NOLINT

  TORCH_ARG(int64_t, period);
  /// Of the outer optimizer, an SGD. With 1 and no momentum a round ends with
  /// the mean of the parameters.
  TORCH_ARG(double, learning_rate) = 0.7;
  TORCH_ARG(double, momentum) = 0.9;
  TORCH_ARG(bool, nesterov) = true;
  /// Null: all ranks.
  TORCH_ARG(c10::intrusive_ptr<c10d::Backend>, process_group) = nullptr;
};

/// Ranks train alone for a round of many steps; then the mean over ranks of
/// what these have changed is the gradient of one step of an outer SGD, from
/// where the round began. A rank sends in a step 1/period of what averaging
/// gradients sends.
///
/// All ranks are to begin with the same parameters (`DistributedDataParallel`
/// sees to that), and to train with their own gradients: by `NoExchange`, or
/// by the wrapped module's own forward. The inner optimizer's state stays each
/// rank's. It costs the memory of the parameters twice.
///
/// A checkpoint holds `outer_parameters()`, the state of `outer_optimizer()`
/// and `steps()`; at the end of a round the first are the parameters.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel local(
///       net,
///       ddp::DistributedDataParallelOptions().exchange(
///           std::make_shared<ddp::NoExchange>()));
///   ddp::DiLoCo outer(local->parameters(), ddp::DiLoCoOptions(500));
///   for (...) {
///     optimizer.zero_grad();
///     loss_of(local->forward(batch.data), batch.target).backward();
///     optimizer.step();
///     outer.average_parameters(local->parameters());
///   }
/// @endcode
///
/// Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of
/// Language Models", 2023.
class DiLoCo : public ModelAverager {
 public:
  /// @param parameters  before the first step, the same on all ranks; those
  ///   that require a gradient are trained.
  /// @throws c10::Error when the period is not positive, an option is not one
  ///   of torch::optim::SGD, or no parameter requires a gradient.
  DiLoCo(const std::vector<at::Tensor>& parameters,
         const DiLoCoOptions& options);

  /// After the last step of a round the parameters become what the outer step
  /// makes: an all-reduce for each dtype and device.
  /// @throws c10::Error when these are not the parameters of the constructor.
  bool average_parameters(const std::vector<at::Tensor>& parameters) override;

  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override;

  /// Where the round began, in the order of the parameters that are trained.
  const std::vector<at::Tensor>& outer_parameters() const { return outer_; }
  torch::optim::SGD& outer_optimizer() { return optimizer_; }

 private:
  DiLoCoOptions options_;
  std::vector<at::Tensor> outer_;
  torch::optim::SGD optimizer_;
  int64_t steps_ = 0;
};

}  // namespace ddp
