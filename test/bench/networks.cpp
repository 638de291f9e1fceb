#include "test/bench/networks.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/transformerlayer.h>

namespace ddp::bench {
namespace {

constexpr int64_t kClasses = 10;
constexpr int64_t kHeads = 4;
constexpr int64_t kLength = 64;  // words of a sentence

torch::nn::Conv2d convolution(int64_t in,
                              int64_t out,
                              int64_t kernel,
                              int64_t stride = 1) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel)
                               .stride(stride)
                               .padding(kernel / 2)
                               .bias(false));
}

/// A basic block of a ResNet.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t in, int64_t out, int64_t stride)
      : path(convolution(in, out, 3, stride),
             torch::nn::BatchNorm2d(out),
             torch::nn::ReLU(),
             convolution(out, out, 3),
             torch::nn::BatchNorm2d(out)) {
    register_module("path", path);
    if (in != out) {
      shortcut->push_back(convolution(in, out, 1, stride));
      shortcut->push_back(torch::nn::BatchNorm2d(out));
    }
    register_module("shortcut", shortcut);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(path->forward(x) +
                       (shortcut->is_empty() ? x : shortcut->forward(x)));
  }

  torch::nn::Sequential path;
  torch::nn::Sequential shortcut;
};
TORCH_MODULE(Block);

/// A ResNet-18 for images of 32 x 32 pixels.
torch::nn::Sequential resnet() {
  torch::nn::Sequential net(
      convolution(3, 64, 3), torch::nn::BatchNorm2d(64), torch::nn::ReLU());
  int64_t channels = 64;
  for (const int64_t out : {64, 128, 256, 512}) {
    net->push_back(Block(channels, out, out == 64 ? 1 : 2));
    net->push_back(Block(out, out, 1));
    channels = out;
  }
  net->push_back(torch::nn::AdaptiveAvgPool2d(1));
  net->push_back(torch::nn::Flatten());
  net->push_back(torch::nn::Linear(channels, kClasses));
  return net;
}

/// The layers of a transformer's encoder. They take (length, batch, width).
torch::nn::Sequential transformer(const Workload& workload) {
  torch::nn::Sequential net;
  for (int64_t i = 0; i < workload.layers; ++i) {
    net->push_back(torch::nn::TransformerEncoderLayer(
        torch::nn::TransformerEncoderLayerOptions(workload.width, kHeads)
            .dim_feedforward(4 * workload.width)
            .dropout(0)));
  }
  return net;
}

}  // namespace

torch::nn::Sequential network(const Workload& workload) {
  torch::manual_seed(0);
  switch (workload.model) {
    case Workload::Model::chain:
      return torch::nn::Sequential(Chain(workload));
    case Workload::Model::resnet:
      return resnet();
    case Workload::Model::transformer:
      return transformer(workload);
  }
  TORCH_INTERNAL_ASSERT(false);
}

torch::Tensor input(const Workload& workload) {
  switch (workload.model) {
    case Workload::Model::chain:
      return torch::ones({workload.batch, workload.width});
    case Workload::Model::resnet:
      return torch::rand({workload.batch, 3, 32, 32});
    case Workload::Model::transformer:
      return torch::rand({kLength, workload.batch, workload.width});
  }
  TORCH_INTERNAL_ASSERT(false);
}

torch::Tensor target(const Workload& workload) {
  return workload.model == Workload::Model::resnet
             ? torch::zeros({workload.batch, kClasses})
             : torch::zeros_like(input(workload));
}

}  // namespace ddp::bench
