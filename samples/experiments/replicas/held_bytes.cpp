#include "samples/experiments/replicas/held_bytes.h"

#include <torch/types.h>

namespace samples {
namespace {

int64_t bytes_of(const std::vector<torch::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  }
  return bytes;
}

}  // namespace

int64_t state_bytes(const torch::nn::Module& module) {
  return bytes_of(module.parameters()) + bytes_of(module.buffers());
}

int64_t gradient_bytes(const torch::nn::Module& module) {
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : module.parameters()) {
    if (parameter.is_leaf()) {  // only leaves keep a gradient
      gradients.push_back(parameter.grad());
    }
  }
  return bytes_of(gradients);
}

int64_t state_bytes(const torch::optim::SGD& optimizer) {
  std::vector<torch::Tensor> momenta;
  for (const auto& [parameter, state] : optimizer.state()) {
    momenta.push_back(static_cast<const torch::optim::SGDParamState&>(*state)
                          .momentum_buffer());
  }
  return bytes_of(momenta);
}

}  // namespace samples
