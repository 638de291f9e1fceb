#pragma once

#include <torch/nn/module.h>

namespace samples {

/// A module that scores images: float32 [n, channels, height, width] in,
/// unnormalised scores [n, classes] out. One type for the training loop,
/// whichever network it trains.
class Classifier : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& images) = 0;
};

}  // namespace samples
