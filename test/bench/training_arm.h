#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include "test/bench/networks.h"

namespace ddp::bench {

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<torch::Tensor> parameters)>;

template <typename Optimizer, typename Options>
MakeOptimizer optimizer(const Options& options) {
  return [options](std::vector<torch::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

/// A learning rate so small that the values do not change noticeably.
constexpr double kRate = 1e-6;

inline MakeOptimizer sgd() {
  return optimizer<torch::optim::SGD>(torch::optim::SGDOptions(kRate));
}

/// Implements all parts of a step except the forward through the arm's wrapper.
template <typename Forward>
class TrainingArm : public Arm {
 public:
  template <typename Net>
  TrainingArm(const Workload& workload,
              const Net& net,
              Forward forward,
              const MakeOptimizer& make_optimizer)
      : data_(input(workload)),
        target_(target(workload)),
        optimizer_(make_optimizer(net.parameters())),
        forward_(std::move(forward)) {}

  void step() override {
    torch::mse_loss(forward_(data_), target_).backward();
    optimizer_->step();
    optimizer_->zero_grad();
  }

 private:
  torch::Tensor data_, target_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Forward forward_;
};

/// @param net  has the parameters for the optimizer.
template <typename Net, typename Forward>
std::unique_ptr<Arm> training_arm(const Workload& workload,
                                  const Net& net,
                                  Forward forward,
                                  const MakeOptimizer& make_optimizer = sgd()) {
  return std::make_unique<TrainingArm<Forward>>(
      workload, net, std::move(forward), make_optimizer);
}

/// Creates an arm of a module, wrapped or not.
/// @param model  its holder.
template <typename Model>
std::unique_ptr<Arm> model_arm(const Workload& workload,
                               Model model,
                               const MakeOptimizer& make_optimizer = sgd()) {
  return training_arm(
      workload,
      *model,
      [model](const torch::Tensor& x) mutable { return model->forward(x); },
      make_optimizer);
}

}  // namespace ddp::bench
