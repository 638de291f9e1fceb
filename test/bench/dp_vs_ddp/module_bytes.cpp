#include "test/bench/dp_vs_ddp/module_bytes.h"

#include <torch/types.h>

#include <algorithm>
#include <cstring>

namespace ddp::bench {
namespace {

constexpr double kSmallest = 1e-30;  // below every value of a trained parameter

int64_t bytes_of(const std::vector<torch::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  }
  return bytes;
}

}  // namespace

std::vector<uint8_t> parameter_bytes(const torch::nn::Module& module) {
  std::vector<uint8_t> bytes;
  for (const auto& parameter : module.parameters()) {
    const auto values = parameter.detach().cpu().contiguous();
    const auto* data = static_cast<const uint8_t*>(values.const_data_ptr());
    bytes.insert(bytes.end(), data, data + values.nbytes());
  }
  return bytes;
}

double greatest_difference(const torch::nn::Module& module,
                           const std::vector<uint8_t>& others) {
  const auto expected = parameter_bytes(module).size();
  TORCH_CHECK(others.size() == expected,
              "Expected ",
              expected,
              " bytes of parameters, but got ",
              others.size(),
              ".");
  double greatest = 0;
  const uint8_t* place = others.data();
  for (const auto& parameter : module.parameters()) {
    const auto mine = parameter.detach().cpu().contiguous();
    auto other = torch::empty_like(mine);
    std::memcpy(other.mutable_data_ptr(), place, other.nbytes());
    place += other.nbytes();
    const double scale = other.abs().max().item<double>();
    const double difference = (mine - other).abs().max().item<double>();
    greatest = std::max(greatest, difference / std::max(scale, kSmallest));
  }
  return greatest;
}

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

}  // namespace ddp::bench
