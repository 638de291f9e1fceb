#include "ddp/exchanges/step_in_backward.h"

#include <utility>
#include <vector>

#include <c10/util/ScopeExit.h>
#include <torch/optim/lbfgs.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/optim/averaging_optimizer.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "ddp/tensors/with_parameters.h"

namespace ddp {
namespace {

/// Replaces the `.grad` of parameters by the bucket's gradients during a step,
/// and restores it afterwards. Needed for a parameter that this rank has not
/// used, and for a sparse gradient, which is only stored at the end of the
/// pass.
class AliasedGradients {
 public:
  AliasedGradients() = default;
  AliasedGradients(const AliasedGradients&) = delete;
  AliasedGradients& operator=(const AliasedGradients&) = delete;
  ~AliasedGradients() {
    for (auto& [param, own] : lent_) {
      param.mutable_grad() = own;
    }
  }

  void lend(const at::Tensor& param, const at::Tensor& grad) {
    lent_.emplace_back(param, std::exchange(param.mutable_grad(), grad));
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> lent_;
};

bool holds_its_piece(const at::Tensor& param, const at::Tensor& payload) {
  const at::Tensor& grad = param.grad();
  return grad.defined() && !payload.is_sparse() && grad.is_alias_of(payload);
}

/// Returns the kind of the optimizer, for the error message; null if it steps
/// each parameter independently.
const char* steps_all_at_once(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    return "LBFGS";
  }
  if (dynamic_cast<const ZeroRedundancyOptimizer*>(&optimizer) != nullptr) {
    return "a ZeroRedundancyOptimizer";
  }
  const bool averages =
      dynamic_cast<const detail::AveragingOptimizer*>(&optimizer) != nullptr;
  return averages ? "a PostLocalSGDOptimizer" : nullptr;
}

}  // namespace

StepInBackward::StepInBackward(torch::optim::Optimizer& optimizer,
                               c10::intrusive_ptr<c10d::Backend> group)
    : StepInBackward(optimizer, std::make_shared<AllReduce>(std::move(group))) {
}

StepInBackward::StepInBackward(torch::optim::Optimizer& optimizer,
                               std::shared_ptr<Exchange> inner)
    : ForwardingExchange(std::move(inner)),
      optimizer_(optimizer),
      stepped_(optimizer) {
  const auto* refused = steps_all_at_once(optimizer);
  TORCH_CHECK(
      refused == nullptr,
      "Expected an optimizer that steps each parameter by itself, but got ",
      refused,
      "; call its step() after backward()");
}

void StepInBackward::start(const GradientBucket& bucket) {
  if (bucket.index == 0) {
    started_.reset();
    finished_ = 0;
    index_param_groups();
  }
  inner().start(bucket);
  // The previous bucket has probably arrived by now; step it while this bucket
  // is being exchanged.
  if (const auto before = std::exchange(started_, bucket)) {
    finish_and_step(*before);
  }
}

void StepInBackward::finish(const GradientBucket& bucket) {
  if (bucket.index < finished_) {
    return;
  }
  started_.reset();
  finish_and_step(bucket);
}

/// Called in every pass, since param groups may change between passes.
void StepInBackward::index_param_groups() {
  group_of_.clear();
  const auto& groups = optimizer_.param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const auto& param : groups[g].params()) {
      group_of_.emplace(param.unsafeGetTensorImpl(), g);
    }
  }
}

void StepInBackward::finish_and_step(const GradientBucket& bucket) {
  finished_ = bucket.index + 1;
  inner().finish(bucket);
  step_bucket(bucket);
}

void StepInBackward::step_bucket(const GradientBucket& bucket) {
  AliasedGradients lent;
  std::vector<at::Tensor> pieces;  // created on demand
  detail::GroupParameters chosen(optimizer_.param_groups().size());
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const at::Tensor& param = bucket.parameters[i].tensor;
    const auto group = group_of_.find(param.unsafeGetTensorImpl());
    if (group == group_of_.end() || !param.requires_grad()) {
      continue;
    }
    if (!holds_its_piece(param, bucket.payload)) {
      if (pieces.empty()) {
        pieces = bucket.gradients();
      }
      lent.lend(param, pieces[i]);
    }
    chosen[group->second].push_back(param);
  }
  detail::with_parameters(optimizer_, chosen, [this] { optimizer_.step(); });
}

}  // namespace ddp
