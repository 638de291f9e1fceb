#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "ddp/optim/detail/pieces.h"

namespace ddp::detail {

/// @throws c10::Error, with its type, for an optimizer that is none of SGD,
///   Adam, AdamW, RMSprop and Adagrad or derived from these: whether another
///   one steps each element by itself, and what it keeps, is not known.
void check_elementwise(const torch::optim::Optimizer& optimizer);

/// Throws when the parameter is cut and its state has a tensor of another
/// shape.
/// @param kind  any optimizer of that kind; of a cut parameter elementwise.
void check_state(const ParameterShard& piece,
                 const torch::optim::Optimizer& kind,
                 const torch::optim::OptimizerParamState& whole);

/// A copy of what the piece has of its parameter's state.
std::unique_ptr<torch::optim::OptimizerParamState> cut_state(
    const ParameterShard& piece,
    const torch::optim::Optimizer& kind,
    const torch::optim::OptimizerParamState& whole);

/// Puts a piece's state into its place in that of the parameter, which the
/// first piece makes.
void join_state(const ParameterShard& piece,
                const torch::optim::Optimizer& kind,
                std::unique_ptr<torch::optim::OptimizerParamState> part,
                std::unique_ptr<torch::optim::OptimizerParamState>& whole);

}  // namespace ddp::detail
