#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "ddp/optim/model_averager.h"

namespace ddp {

/// An optimizer whose steps are each followed by the averager: post-local SGD
/// with one call, PyTorch's PostLocalSGDOptimizer. It is the optimizer itself
/// otherwise, so schedulers, `GradScaler` and `Checkpoint` take it for that.
///
/// torch::save and torch::load have the averager's steps, too, so a training
/// that is resumed makes no warm-up again; a file of the optimizer alone loads
/// with a warning, and the averager then begins.
///
/// @tparam Optimizer  torch::optim::SGD, ddp::FusedAdamW, ... with any
///   constructor. Its parameters are the averager's.
///
/// Example:
/// @code
///   ddp::PostLocalSGDOptimizer<torch::optim::SGD> local(
///       std::make_shared<ddp::PeriodicModelAverager>(
///           ddp::PeriodicModelAveragerOptions(4).warmup_steps(100)),
///       model->parameters(),
///       0.1);
///   local.zero_grad();
///   loss_of(model->forward(data), target).backward();
///   local.step();
/// @endcode
template <typename Optimizer>
class PostLocalSGDOptimizer : public Optimizer {
 public:
  /// @param arguments  of the optimizer.
  template <typename... Arguments>
  explicit PostLocalSGDOptimizer(std::shared_ptr<ModelAverager> averager,
                                 Arguments&&... arguments)
      : Optimizer(std::forward<Arguments>(arguments)...),
        averager_(std::move(averager)) {
    TORCH_CHECK(averager_ != nullptr,
                "Expected an averager for PostLocalSGDOptimizer, but got none");
  }

  /// Steps, then has the averager called. Collective where that averages.
  at::Tensor step(typename torch::optim::Optimizer::LossClosure closure =
                      nullptr) override {
    auto loss = Optimizer::step(std::move(closure));
    std::vector<at::Tensor> parameters;
    for (const auto& group : this->param_groups()) {
      parameters.insert(
          parameters.end(), group.params().begin(), group.params().end());
    }
    averager_->average_parameters(parameters);
    return loss;
  }

  const std::shared_ptr<ModelAverager>& averager() const { return averager_; }

  void save(torch::serialize::OutputArchive& archive) const override {
    Optimizer::save(archive);
    archive.write(kSteps, c10::IValue(averager_->steps()));
  }

  void load(torch::serialize::InputArchive& archive) override {
    Optimizer::load(archive);
    c10::IValue steps(int64_t{0});
    if (!archive.try_read(kSteps, steps)) {
      TORCH_WARN(
          "Expected an averager's steps in the file of a "
          "PostLocalSGDOptimizer, but got none; it begins with step 0");
    }
    averager_->set_steps(steps.toInt());
  }

 private:
  static constexpr const char* kSteps = "averager_steps";

  std::shared_ptr<ModelAverager> averager_;
};

}  // namespace ddp
