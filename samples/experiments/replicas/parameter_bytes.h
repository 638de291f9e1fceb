#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

namespace samples {

/// The values of all parameters in registration order, to send them to another
/// process of this machine.
std::vector<uint8_t> parameter_bytes(const torch::nn::Module& module);

/// How far parameters are from those of another module of this kind: the
/// greatest difference in a tensor over its greatest value, of all tensors.
///
/// @param others  its `parameter_bytes`.
/// @throws c10::Error when there are more or fewer of them.
double greatest_difference(const torch::nn::Module& module,
                           const std::vector<uint8_t>& others);

}  // namespace samples
