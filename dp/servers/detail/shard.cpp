#include "dp/servers/detail/shard.h"

#include <utility>

#include <c10/core/GradMode.h>

namespace dp::detail {
Shard::Shard(const std::vector<at::Tensor>& parameters,
             const OptimizerFactory& make_optimizer,
             UpdateHook before_update)
    : memory_(parameters),
      parameters_(memory_.pieces()),
      before_update_(std::move(before_update)) {
  copy_all(parameters, memory_.pieces());
  for (auto& parameter : parameters_) {
    parameter.requires_grad_(true);
  }
  optimizer_ = make_optimizer(parameters_);
  TORCH_CHECK(optimizer_ != nullptr,
              "Expected an optimizer from make_optimizer, but got none");
}

void Shard::step(const std::vector<at::Tensor>& gradients,
                 const Update& update) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].mutable_grad() = gradients[i];
  }
  if (before_update_) {
    before_update_(update, *optimizer_);
  }
  optimizer_->step();
  // The memory of these gradients will be reused for other gradients.
  for (auto& parameter : parameters_) {
    parameter.mutable_grad() = at::Tensor();
  }
}

void Shard::copy_to(const std::vector<at::Tensor>& parameters) const {
  copy_all(memory_.pieces(), parameters);
}

void copy_all(const std::vector<at::Tensor>& from,
              const std::vector<at::Tensor>& to) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) {
    at::Tensor target = to[i];
    target.copy_(from[i]);
  }
}

}  // namespace dp::detail
