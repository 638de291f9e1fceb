#include "samples/support/models.h"

#include <torch/nn/init.h>
#include <torch/types.h>

namespace samples {
namespace {

torch::nn::Conv2d convolution(int64_t in,
                              int64_t out,
                              int64_t kernel,
                              int64_t stride = 1) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel)
                               .stride(stride)
                               .padding(kernel / 2)
                               .bias(false));
}

// Two convolutions with a shortcut connection.
class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1_(convolution(in, out, 3, stride)),
        bn1_(out),
        conv2_(convolution(out, out, 3)),
        bn2_(out) {
    register_module("conv1", conv1_);
    register_module("bn1", bn1_);
    register_module("conv2", conv2_);
    register_module("bn2", bn2_);
    if (stride != 1 || in != out) {
      downsample_ = torch::nn::Sequential{convolution(in, out, 1, stride),
                                          torch::nn::BatchNorm2d(out)};
      register_module("downsample", downsample_);
    }
  }

  torch::Tensor forward(const torch::Tensor& input) {
    auto x = bn1_(conv1_(input)).relu_();
    x = bn2_(conv2_(x));
    x += downsample_.is_empty() ? input : downsample_->forward(input);
    return x.relu_();
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
  torch::nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(BasicBlock);

torch::nn::Sequential stage(int64_t in, int64_t out, int64_t stride) {
  return torch::nn::Sequential{BasicBlock(in, out, stride),
                               BasicBlock(out, out, 1)};
}

}  // namespace

ResNet18::ResNet18(int64_t channels, int64_t classes)
    : conv1_(convolution(channels, 64, 3)),
      bn1_(64),
      layer1_(stage(64, 64, 1)),
      layer2_(stage(64, 128, 2)),
      layer3_(stage(128, 256, 2)),
      layer4_(stage(256, 512, 2)),
      fc_(512, classes) {
  register_module("conv1", conv1_);
  register_module("bn1", bn1_);
  register_module("layer1", layer1_);
  register_module("layer2", layer2_);
  register_module("layer3", layer3_);
  register_module("layer4", layer4_);
  register_module("fc", fc_);
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* conv = module->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(
          conv->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }
}

torch::Tensor ResNet18::forward(const torch::Tensor& images) {
  auto x = bn1_(conv1_(images)).relu_();
  x = layer1_->forward(x);
  x = layer2_->forward(x);
  x = layer3_->forward(x);
  x = layer4_->forward(x);
  return fc_(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

}  // namespace samples
