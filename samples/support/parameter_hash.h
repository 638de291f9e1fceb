#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace samples {

/// FNV-1a, 64 bits, over the bytes of all parameters in registration order:
/// equal on two ranks when their parameters are equal bit for bit.
uint64_t parameter_hash(const torch::nn::Module& module);

}  // namespace samples
