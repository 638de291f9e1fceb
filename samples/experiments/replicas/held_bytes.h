#pragma once

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <cstdint>

namespace samples {

/// Bytes of a module's parameters and buffers.
int64_t state_bytes(const torch::nn::Module& module);

/// Bytes of the gradients that its parameters have; a replica of
/// DataParallel's has none.
int64_t gradient_bytes(const torch::nn::Module& module);

/// Bytes of the optimizer's momentum, for the parameters that have been
/// updated.
int64_t state_bytes(const torch::optim::SGD& optimizer);

}  // namespace samples
