#pragma once

#include <functional>

#include <ATen/core/ivalue.h>

#include "ddp/optim/model_averager.h"

namespace ddp::detail {

/// Adds an averager's state to a dict: "step", as in PyTorch's
/// PostLocalSGDOptimizer, and with an outer optimizer also "outer_parameters"
/// and "outer_optimizer".
void insert_averager(const ModelAverager& averager,
                     c10::Dict<c10::IValue, c10::IValue>& dict);

/// Checks the entries that `insert_averager` added, and returns a function that
/// applies them. For a dict without "step" it warns, and the function resets
/// the averager to step 0.
/// @throws c10::Error if an entry does not fit.
std::function<void()> read_averager(ModelAverager& averager,
                                    const c10::IValue& saved);

}  // namespace ddp::detail
