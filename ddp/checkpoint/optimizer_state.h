#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

namespace ddp::detail {

/// Returns the value of Python's `optimizer.state_dict()` for the same
/// optimizer: {'state': {0: {'momentum_buffer': ...}}, 'param_groups': [{'lr':
/// ..., 'params': [0, 1]}]}.
///
/// @throws c10::Error for an optimizer other than LibTorch's SGD, Adam, AdamW,
///   RMSprop, Adagrad and LBFGS.
c10::IValue optimizer_to_value(const torch::optim::Optimizer& optimizer);

/// New options and states for an optimizer, checked against it.
struct OptimizerUpdate {
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  std::vector<
      std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>>
      states;
};

/// Reads a value of `optimizer_to_value` or of Python's optimizer. Changes
/// nothing. Tensors are converted to their parameter's device and dtype, as
/// Python does.
///
/// @throws c10::Error if it is the state of another class of optimizer, has
///   other groups or shapes, or needs an option that LibTorch lacks (maximize).
OptimizerUpdate read_optimizer(const torch::optim::Optimizer& optimizer,
                               const c10::IValue& value);

/// Replaces the optimizer's options and states by the update.
void apply(OptimizerUpdate update, torch::optim::Optimizer& optimizer);

}  // namespace ddp::detail
