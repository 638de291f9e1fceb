#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "samples/support/classifier.h"

namespace samples {

/// ResNet-18 for small images: as He et al. have it for ImageNet, but with a
/// first convolution of 3x3 and stride 1 and without the first pooling, as is
/// usual for CIFAR-10. Parameters and buffers have torchvision's names and
/// initial distributions.
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

}  // namespace samples
