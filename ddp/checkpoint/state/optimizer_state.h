#pragma once

#include <functional>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

namespace ddp::detail {

/// Convert a tensor of a parameter's state to its value in a checkpoint, and
/// back. Without a function they are the same.
using StateToValue = std::function<c10::IValue(const at::Tensor& parameter,
                                               const at::Tensor& state)>;
using ValueToState = std::function<at::Tensor(const at::Tensor& parameter,
                                              const at::Tensor& value)>;

/// Returns the value of Python's `optimizer.state_dict()` for the same
/// optimizer: {'state': {0: {'momentum_buffer': ...}}, 'param_groups': [{'lr':
/// ..., 'params': [0, 1]}]}.
///
/// @throws c10::Error for an optimizer other than LibTorch's SGD, Adam, AdamW,
///   RMSprop and Adagrad.
c10::IValue optimizer_to_value(const torch::optim::Optimizer& optimizer,
                               const StateToValue& convert = {});

/// Checks a value of `optimizer_to_value` or of Python's optimizer. Changes
/// nothing.
///
/// @throws c10::Error as above, or if the value is the state of another class
///   of optimizer, has other groups or shapes, or needs an option that LibTorch
///   lacks (maximize).
void check_optimizer(const torch::optim::Optimizer& optimizer,
                     const c10::IValue& value,
                     const ValueToState& convert = {});

/// Replaces the optimizer's options and states by a value of this form. Tensors
/// are copied to their parameter's device and dtype, as Python does.
///
/// @throws c10::Error as `check_optimizer`.
void load_optimizer(torch::optim::Optimizer& optimizer,
                    const c10::IValue& value,
                    const ValueToState& convert = {});

}  // namespace ddp::detail
