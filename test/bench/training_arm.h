#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "test/bench/arms.h"

namespace ddp::bench {

/// The model of a Workload.
struct ChainImpl : torch::nn::Cloneable<ChainImpl> {
  explicit ChainImpl(const Workload& workload) : workload(workload) { reset(); }

  void reset() override {
    layers.clear();
    for (int64_t i = 0; i < workload.layers; ++i) {
      layers.push_back(
          register_module(std::to_string(i),
                          torch::nn::Linear(workload.width, workload.width)));
      // Signals and gradients neither grow nor shrink to slow denormals.
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

/// What every arm does but the forward through its wrapper.
template <typename Forward, typename Optimizer>
class TrainingArm : public Arm {
 public:
  TrainingArm(const Workload& workload, const Chain& net, Forward forward)
      : data_(torch::ones({workload.batch, workload.width})),
        target_(torch::zeros({workload.batch, workload.width})),
        optimizer_(net->parameters(), torch::optim::SGDOptions(1e-6)),
        forward_(std::move(forward)) {}

  void step() override {
    torch::mse_loss(forward_(data_), target_).backward();
    optimizer_.step();
    optimizer_.zero_grad();
  }

 private:
  torch::Tensor data_, target_;
  Optimizer optimizer_;
  Forward forward_;
};

template <typename Optimizer = torch::optim::SGD, typename Forward>
std::unique_ptr<Arm> training_arm(const Workload& workload,
                                  const Chain& net,
                                  Forward forward) {
  return std::make_unique<TrainingArm<Forward, Optimizer>>(
      workload, net, std::move(forward));
}

}  // namespace ddp::bench
