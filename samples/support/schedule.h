#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>

namespace samples {

/// Returns the learning rate of cosine decay: `peak` at step 0, nearly 0 at the
/// last of `steps`.
///
/// Source: Loshchilov and Hutter, "SGDR", ICLR 2017, without restarts.
double cosine_learning_rate(double peak, int64_t step, int64_t steps);

/// Sets the learning rate of all parameters for a step, counted from 0, with
/// cosine decay.
void set_learning_rate(torch::optim::Optimizer& optimizer,
                       double peak,
                       int64_t step,
                       int64_t steps);

}  // namespace samples
