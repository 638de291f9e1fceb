#pragma once

#include <ATen/core/ivalue.h>
#include <torch/optim/lbfgs.h>

#include "ddp/checkpoint/optimizer_state.h"

namespace ddp::detail {

/// `optimizer_to_value` and `read_optimizer` for LBFGS. It has one state for
/// all parameters, as flat vectors, stored under the first parameter as in
/// Python.
/// @throws c10::Error as `read_optimizer`.
c10::IValue lbfgs_to_value(const torch::optim::LBFGS& optimizer);
OptimizerUpdate read_lbfgs(const torch::optim::LBFGS& optimizer,
                           const c10::IValue& value);

}  // namespace ddp::detail
