#include "samples/experiments/replicas/mlp.h"

#include <torch/types.h>

namespace samples {

Mlp::Mlp(const ImageShape& shape, int64_t width, int64_t classes)
    : fc1_(shape.channels * shape.height * shape.width, width),
      fc2_(width, width),
      fc3_(width, classes) {
  register_module("fc1", fc1_);
  register_module("fc2", fc2_);
  register_module("fc3", fc3_);
}

torch::Tensor Mlp::forward(const torch::Tensor& images) {
  const auto x = torch::relu(fc1_(images.flatten(1)));
  return fc3_(torch::relu(fc2_(x)));
}

}  // namespace samples
