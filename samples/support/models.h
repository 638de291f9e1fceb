#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <memory>

#include "samples/support/images.h"

namespace samples {

enum class ModelKind { small_cnn, resnet18 };

/// A module that scores images: float32 [n, channels, height, width] in,
/// unnormalised scores [n, classes] out. The training loop uses this type for
/// every network.
class Classifier : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& images) = 0;
};

/// The network of PyTorch's MNIST example, for images of at least 6x6 pixels:
/// two 3x3 convolutions, max pooling, two linear layers, dropout. The
/// parameters have the names of the example.
///
/// Source: pytorch/examples, mnist/main.py.
class SmallCnn : public Classifier {
 public:
  /// @throws c10::Error for images smaller than 6x6.
  SmallCnn(const ImageShape& shape, int64_t classes);

  torch::Tensor forward(const torch::Tensor& images) override;

 private:
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Dropout dropout1_, dropout2_;
  torch::nn::Linear fc1_, fc2_;
};

/// ResNet-18 for small images: the network of He et al. for ImageNet, but with
/// a first convolution of 3x3 and stride 1, and without the first pooling, as
/// is usual for CIFAR-10. Parameters and buffers have the names and the initial
/// distributions of torchvision.
///
/// Source: He et al., "Deep Residual Learning for Image Recognition", CVPR
/// 2016; torchvision.models.resnet18.
class ResNet18 : public Classifier {
 public:
  ResNet18(int64_t channels, int64_t classes);

  torch::Tensor forward(const torch::Tensor& images) override;

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  torch::nn::Linear fc_;
};

/// Creates the selected network for this data set, with parameters drawn from
/// LibTorch's generator.
std::shared_ptr<Classifier> make_model(ModelKind kind, const Dataset& dataset);

/// Sets the dropout probability of the network to 0. The random numbers of
/// dropout depend on the number of ranks or replicas; without dropout, the
/// training does not.
void remove_dropout(Classifier& network);

}  // namespace samples
