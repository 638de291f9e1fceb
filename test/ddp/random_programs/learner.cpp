#include "test/ddp/random_programs/learner.h"

#include <algorithm>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "ddp/collectives.h"
#include "ddp/optim/fused.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "ddp/shard/operator_watch.h"
#include "test/support/dice.h"

namespace ddp::test {
namespace {

using torch::Tensor;

template <class Kind, class Options>
std::unique_ptr<torch::optim::Optimizer> make_sharded(
    const std::vector<Tensor>& parameters,
    const Options& options,
    const Group& group) {
  if (!group) {
    return std::make_unique<Kind>(parameters, options);
  }
  return std::make_unique<ZeroRedundancyOptimizer>(
      parameters,
      [options](const auto& groups) {
        return std::make_unique<Kind>(groups, options);
      },
      group);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    Stepper stepper,
    const std::vector<Tensor>& parameters,
    const Group& group) {
  const auto sgd = torch::optim::SGDOptions(1.0 / 16);
  const auto momentum = torch::optim::SGDOptions(1.0 / 16).momentum(0.5);
  const auto adam = torch::optim::AdamOptions(0.1);
  switch (stepper) {
    case Stepper::sgd:
      return std::make_unique<torch::optim::SGD>(parameters, sgd);
    case Stepper::momentum:
      return std::make_unique<torch::optim::SGD>(parameters, momentum);
    case Stepper::fused_momentum:
      return std::make_unique<FusedSGD>(parameters, momentum);
    case Stepper::sharded_momentum:
      return make_sharded<torch::optim::SGD>(parameters, momentum, group);
    case Stepper::adam:
      return std::make_unique<torch::optim::Adam>(parameters, adam);
    case Stepper::fused_adam:
      return std::make_unique<FusedAdam>(parameters, adam);
    case Stepper::sharded_adam:
      return make_sharded<torch::optim::Adam>(parameters, adam, group);
  }
  return nullptr;
}

}  // namespace

Learner::Learner(const Program& program, int rank, const Group& group)
    : net(program, rank), program_(program), rank_(rank), group_(group) {
  for (const auto& item : net->named_parameters()) {
    const Tensor& parameter = item.value();
    if (std::any_of(
            parameters.begin(), parameters.end(), [&](const Tensor& other) {
              return other.is_same(parameter);
            })) {
      continue;
    }
    parameters.push_back(parameter);
    if (program.parts[part_of(item.key())].kind != Part::Kind::rows) {
      dense_.push_back(parameter);
      if (!is_ignored(program, item.key())) {
        clipped_.push_back(parameter);
      }
    }
  }
  optimizer = make_optimizer(program.stepper, parameters, group);
}

void Learner::train_leaves(const std::vector<Tensor>& leaves) {
  TORCH_CHECK(leaves.size() == parameters.size());
  leaves_ = leaves;
  optimizer = make_optimizer(program_.stepper, leaves, group_);
}

Tensor Learner::gradient_of(const Tensor& parameter) const {
  // A sharded parameter has a gradient without values after a pass.
  const Tensor local = detail::watched_storage_of(parameter.grad()) == nullptr
                           ? parameter.grad()
                           : Tensor();
  size_t index = 0;
  while (!parameters[index].is_same(parameter)) {
    ++index;
  }
  // After a local pass a leaf has a gradient without values.
  const auto has_mean = [](const Tensor& grad) {
    auto* memory = detail::watched_storage_of(grad);
    return grad.defined() &&
           (memory == nullptr ||
            memory->_mutable_data_ptr_no_checks().get() != nullptr);
  };
  if (leaves_.empty() || leaves_[index].is_same(parameter) ||
      !has_mean(leaves_[index].grad())) {
    return local;
  }
  const auto mean = torch::cat(all_gather(leaves_[index].grad(), group_))
                        .view(parameter.sizes());
  return local.defined() ? mean + local : mean;
}

void Learner::clip(double norm) {
  if (norm > 0) {
    torch::nn::utils::clip_grad_norm_(clipped_, norm);
  }
}

void Learner::zero(Zero how) {
  if (how != Zero::keep) {
    optimizer->zero_grad(how == Zero::to_none);
    coding_error = 0;
  }
}

void Learner::freeze_or_thaw(size_t part) {
  const auto name = name_of(part);
  for (auto& item : net->named_parameters()) {
    const auto own = item.key().substr(0, item.key().find_first_of("._"));
    if (own == name && item.key() != name + "_again") {
      item.value().requires_grad_(!item.value().requires_grad());
    }
  }
}

void Learner::preset(size_t act) {
  Dice dice((program_.seed * 100 + act) * 10 + rank_);
  for (const auto& parameter : parameters) {
    const bool is_sparse =
        !program_.acts[act].is_dense() &&
        std::none_of(dense_.begin(), dense_.end(), [&](const Tensor& dense) {
          return dense.is_same(parameter);
        });
    const auto grad = torch::full_like(parameter, 12 * (dice.below(4) - 1));
    // A static graph without a gradient of a part refuses a later gradient.
    const bool is_kept =
        program_.unused == Unused::fixed && is_silent(parameter);
    if (parameter.requires_grad() && !is_kept) {
      parameter.mutable_grad() = is_sparse ? grad.to_sparse(1) : grad;
    }
  }
}

bool Learner::is_silent(const Tensor& parameter) const {
  for (const auto& item : net->named_parameters()) {
    if (item.value().is_same(parameter)) {
      return program_.parts[part_of(item.key())].kind == Part::Kind::silent;
    }
  }
  return false;
}

void Learner::note(const std::string& name, const Tensor& value) {
  notes.emplace_back(name, value.detach().clone());
}

}  // namespace ddp::test
