#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "samples/support/classifier.h"
#include "samples/support/images.h"

namespace samples {

/// The network of PyTorch's MNIST example, for images of any size of at least
/// 6x6: two convolutions of 3x3, a max pooling, two linear layers, dropout.
/// The parameters have the example's names.
///
/// Source: pytorch/examples, mnist/main.py.
class SmallCnn : public Classifier {
 public:
  /// @throws c10::Error for images below 6x6.
  SmallCnn(const ImageShape& shape, int64_t classes);

  torch::Tensor forward(const torch::Tensor& images) override;

 private:
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Dropout dropout1_, dropout2_;
  torch::nn::Linear fc1_, fc2_;
};

}  // namespace samples
