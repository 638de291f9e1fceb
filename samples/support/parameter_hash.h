#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace samples {

/// Returns the 64-bit FNV-1a hash of the bytes of all parameters in
/// registration order. Equal on two ranks if their parameters are bitwise
/// equal.
uint64_t parameter_hash(const torch::nn::Module& module);

}  // namespace samples
