#pragma once

#include <torch/nn/modules/linear.h>

#include "samples/support/images.h"
#include "samples/support/models.h"

namespace samples {

/// Three linear layers with `width` units in each of the two between: much to
/// send for little to compute, where `width` is large.
class Mlp : public Classifier {
 public:
  Mlp(const ImageShape& shape, int64_t width, int64_t classes);

  torch::Tensor forward(const torch::Tensor& images) override;

 private:
  torch::nn::Linear fc1_, fc2_, fc3_;
};

}  // namespace samples
