#pragma once

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <vector>

namespace ddp::bench {

/// Returns the values of all parameters in registration order, for another
/// process on this host.
std::vector<uint8_t> parameter_bytes(const torch::nn::Module& module);

/// Returns the distance between the parameters of two modules of the same kind:
/// the maximum over all tensors of the greatest difference, relative to the
/// greatest value of the tensor.
///
/// @param others  `parameter_bytes` of the other module.
/// @throws c10::Error if the sizes differ.
double greatest_difference(const torch::nn::Module& module,
                           const std::vector<uint8_t>& others);

/// Returns the bytes of a module's parameters and buffers.
int64_t state_bytes(const torch::nn::Module& module);

/// Returns the bytes of the gradients of a module's parameters. A replica of
/// DataParallel has none.
int64_t gradient_bytes(const torch::nn::Module& module);

/// Returns the bytes of the optimizer's momentum buffers, for the parameters
/// that have been updated.
int64_t state_bytes(const torch::optim::SGD& optimizer);

}  // namespace ddp::bench
