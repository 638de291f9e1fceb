#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <vector>

namespace samples {

/// Returns copies of the gradients of a module's parameters, in parameter
/// order.
/// @throws c10::Error that names the first parameter without a gradient.
std::vector<torch::Tensor> copy_gradients(const torch::nn::Module& module);

/// Returns the greatest elementwise difference, relative to the greatest
/// element of `expected`. NaN if a value is NaN. Pure.
double relative_difference(const std::vector<torch::Tensor>& values,
                           const std::vector<torch::Tensor>& expected);

}  // namespace samples
