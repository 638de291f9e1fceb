#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "ddp/optim/detail/pieces.h"

namespace ddp::detail {

/// @throws c10::Error, with the class of the optimizer, unless it is SGD, Adam,
///   AdamW, RMSprop or Adagrad, or derived from one of these. Other optimizers
///   may not step each element independently, and their state is unknown.
void check_elementwise(const torch::optim::Optimizer& optimizer);

/// @throws c10::Error if the parameter is cut and its state has a tensor of
///   another shape.
/// @param kind  any optimizer of the state's class; elementwise for a cut
///   parameter.
void check_state(const ParameterShard& piece,
                 const torch::optim::Optimizer& kind,
                 const torch::optim::OptimizerParamState& whole);

/// Returns a copy of the part of the parameter's state that belongs to `piece`.
std::unique_ptr<torch::optim::OptimizerParamState> cut_state(
    const ParameterShard& piece,
    const torch::optim::Optimizer& kind,
    const torch::optim::OptimizerParamState& whole);

/// Copies the state of `piece` into the parameter's state `whole`. The first
/// call creates `whole`.
void join_state(const ParameterShard& piece,
                const torch::optim::Optimizer& kind,
                std::unique_ptr<torch::optim::OptimizerParamState> part,
                std::unique_ptr<torch::optim::OptimizerParamState>& whole);

}  // namespace ddp::detail
