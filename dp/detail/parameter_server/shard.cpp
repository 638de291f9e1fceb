#include "dp/detail/parameter_server/shard.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

namespace dp::detail {
namespace {

std::vector<at::Tensor> with_marks(std::vector<at::Tensor> parameters) {
  const auto count = static_cast<int64_t>(parameters.size());
  parameters.push_back(at::empty({count}, at::kByte));
  return parameters;
}

/// Undefined when nobody has one.
at::Tensor mean_gradient(const std::vector<FlatGradients*>& terms,
                         size_t index) {
  if (std::none_of(terms.begin(), terms.end(), [&](const FlatGradients* term) {
        return term->has(index);
      })) {
    return at::Tensor();
  }
  auto mean = terms.front()->gradient(index);
  if (terms.size() > 1) {
    const double share = 1.0 / static_cast<double>(terms.size());
    mean.mul_(share);
    for (size_t i = 1; i < terms.size(); ++i) {
      mean.add_(terms[i]->gradient(index).mul_(share));
    }
  }
  return mean;
}

}  // namespace

FlatGradients::FlatGradients(const std::vector<at::Tensor>& parameters)
    : memory_(with_marks(parameters)) {}

void FlatGradients::take(const std::vector<at::Tensor>& parameters) {
  const c10::NoGradGuard no_grad;
  auto* marks = memory_.pieces().back().mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradient = parameters[i].grad();
    auto target = memory_.pieces()[i];
    marks[i] = gradient.defined() ? 1 : 0;
    if (gradient.defined()) {
      target.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
    } else {
      target.zero_();
    }
  }
}

bool FlatGradients::has(size_t index) const {
  return memory_.pieces().back().const_data_ptr<uint8_t>()[index] != 0;
}

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

void Shard::step(const std::vector<FlatGradients*>& gradients,
                 const Update& update) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].mutable_grad() = mean_gradient(gradients, i);
  }
  if (before_update_) {
    before_update_(update, *optimizer_);
  }
  optimizer_->step();
  // Their memory gets other gradients soon.
  for (auto& parameter : parameters_) {
    parameter.mutable_grad() = at::Tensor();
  }
  snapshot_ = at::Tensor();
}

at::Tensor Shard::snapshot() {
  if (!snapshot_.defined()) {
    snapshot_ = memory_.flat().clone();
  }
  return snapshot_;
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
