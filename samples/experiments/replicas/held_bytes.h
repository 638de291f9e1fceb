#pragma once

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <cstdint>

namespace samples {

/// Returns the bytes of a module's parameters and buffers.
int64_t state_bytes(const torch::nn::Module& module);

/// Returns the bytes of the gradients of a module's parameters. A replica of
/// DataParallel has none.
int64_t gradient_bytes(const torch::nn::Module& module);

/// Returns the bytes of the optimizer's momentum buffers, for the parameters
/// that have been updated.
int64_t state_bytes(const torch::optim::SGD& optimizer);

}  // namespace samples
