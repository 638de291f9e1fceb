#include "samples/experiments/replicas/parameter_bytes.h"

#include <torch/types.h>

#include <algorithm>
#include <cstring>

namespace samples {
namespace {

constexpr double kSmallest = 1e-30;  // below every value of a trained parameter

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

}  // namespace samples
