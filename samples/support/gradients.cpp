#include "samples/support/gradients.h"

namespace samples {
namespace {

torch::Tensor flatten(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> flat;
  for (const auto& tensor : tensors) {
    flat.push_back(tensor.reshape({-1}));
  }
  return torch::cat(flat);
}

}  // namespace

std::vector<torch::Tensor> copy_gradients(const torch::nn::Module& module) {
  std::vector<torch::Tensor> gradients;
  for (const auto& item : module.named_parameters()) {
    TORCH_CHECK(item.value().grad().defined(),
                "Expected a gradient of ",
                item.key(),
                ", but got none.");
    gradients.push_back(item.value().grad().clone());
  }
  return gradients;
}

double relative_difference(const std::vector<torch::Tensor>& values,
                           const std::vector<torch::Tensor>& expected) {
  const auto all = flatten(expected);
  return ((flatten(values) - all).abs().max() / all.abs().max()).item<double>();
}

}  // namespace samples
