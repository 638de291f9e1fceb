#pragma once

#include <functional>

#include <ATen/core/ivalue.h>

#include "ddp/optim/model_averager.h"

namespace ddp::detail {

/// Adds an averager's state to a dict: "step", as PyTorch's
/// PostLocalSGDOptimizer has it, and with an outer optimizer
/// "outer_parameters" and "outer_optimizer".
void insert_averager(const ModelAverager& averager,
                     c10::Dict<c10::IValue, c10::IValue>& dict);

/// Checks what `insert_averager` added and returns what puts it into place. A
/// dict without "step" makes the averager begin, with a warning.
/// @throws c10::Error when it does not fit.
std::function<void()> read_averager(ModelAverager& averager,
                                    const c10::IValue& saved);

}  // namespace ddp::detail
