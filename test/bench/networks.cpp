#include "test/bench/networks.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/transformerlayer.h>

#include "samples/support/models.h"

namespace ddp::bench {
namespace {

constexpr int64_t kClasses = 10;
constexpr int64_t kHeads = 4;
constexpr int64_t kLength = 64;  // words of a sentence

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

torch::nn::Sequential network_on_cpu(const Workload& workload) {
  torch::manual_seed(0);
  switch (workload.model) {
    case Workload::Model::chain:
      return torch::nn::Sequential(Chain(workload));
    case Workload::Model::resnet:
      return torch::nn::Sequential(samples::ResNet18(/*channels=*/3, kClasses));
    case Workload::Model::transformer:
      return transformer(workload);
  }
  TORCH_INTERNAL_ASSERT(false);
}

torch::Tensor input_on_cpu(const Workload& workload) {
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

}  // namespace

torch::nn::Sequential network(const Workload& workload) {
  auto net = network_on_cpu(workload);
  net->to(workload.device);
  return net;
}

torch::Tensor input(const Workload& workload) {
  return input_on_cpu(workload).to(workload.device);
}

torch::Tensor target(const Workload& workload) {
  return workload.model == Workload::Model::resnet
             ? torch::zeros({workload.batch, kClasses}, workload.device)
             : torch::zeros_like(input(workload));
}

}  // namespace ddp::bench
