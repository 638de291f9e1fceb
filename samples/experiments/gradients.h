#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <vector>

namespace samples {

/// Copies of the gradients of a module's parameters, in their order.
/// @throws c10::Error that names a parameter without one.
std::vector<torch::Tensor> copy_gradients(const torch::nn::Module& module);

/// Pure: the greatest difference of an element, as a share of the greatest
/// element of `expected`. NaN where there is one.
double relative_difference(const std::vector<torch::Tensor>& values,
                           const std::vector<torch::Tensor>& expected);

}  // namespace samples
