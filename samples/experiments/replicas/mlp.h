#pragma once

#include <torch/nn/modules/linear.h>

#include "samples/support/images.h"
#include "samples/support/models.h"

namespace samples {

/// Three linear layers with two hidden layers of `width` units. With a large
/// `width` the network has many parameters to send for little computation.
class Mlp : public Classifier {
 public:
  Mlp(const ImageShape& shape, int64_t width, int64_t classes);

  torch::Tensor forward(const torch::Tensor& images) override;

 private:
  torch::nn::Linear fc1_, fc2_, fc3_;
};

}  // namespace samples
