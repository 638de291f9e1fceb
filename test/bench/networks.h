#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "test/bench/arms.h"

namespace ddp::bench {

/// A chain of square Linear layers.
struct ChainImpl : torch::nn::Cloneable<ChainImpl> {
  explicit ChainImpl(const Workload& workload) : workload(workload) { reset(); }

  void reset() override {
    layers.clear();
    for (int64_t i = 0; i < workload.layers; ++i) {
      layers.push_back(
          register_module(std::to_string(i),
                          torch::nn::Linear(workload.width, workload.width)));
      // Keeps the magnitude of activations and gradients, because denormal
      // numbers are slow.
      torch::nn::init::eye_(layers.back()->weight);
      torch::nn::init::zeros_(layers.back()->bias);
    }
  }

  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) {
      x = layer(x);
    }
    return x;
  }

  Workload workload;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Chain);

/// Returns the model of a workload on its device, the same on all ranks.
torch::nn::Sequential network(const Workload& workload);

/// Returns the input of a step on the workload's device.
torch::Tensor input(const Workload& workload);

/// Returns the target of a step, of the output's shape and device.
torch::Tensor target(const Workload& workload);

}  // namespace ddp::bench
