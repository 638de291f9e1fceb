#include "samples/experiments/servers/local_views.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/utils.h>

#include <algorithm>

namespace samples {

LocalView::LocalView(const Replicas& replicas) : moved_(replicas.size()) {
  for (const auto& replica : replicas) {
    auto& state = state_.emplace_back(replica->parameters());
    auto& trained = trained_.emplace_back();
    for (const auto& parameter : state) {
      if (parameter.requires_grad()) {
        trained.push_back(parameter);
      }
    }
    const auto buffers = replica->buffers();
    state.insert(state.end(), buffers.begin(), buffers.end());
  }
  broadcast();
  moved_.assign(replicas.size(), {});
}

void LocalView::broadcast() {
  const torch::NoGradGuard no_grad;
  for (size_t replica = 1; replica < state_.size(); ++replica) {
    for (size_t i = 0; i < state_[0].size(); ++i) {
      state_[replica][i].copy_(state_[0][i]);
      count_move(0, replica, state_[0][i]);
    }
  }
}

void LocalView::count_move(size_t from,
                           size_t to,
                           const torch::Tensor& tensor) {
  if (from != to) {
    moved_[from].sent += static_cast<int64_t>(tensor.nbytes());
    moved_[to].received += static_cast<int64_t>(tensor.nbytes());
  }
}

LocalParameterServer::LocalParameterServer(
    const Replicas& replicas, const dp::OptimizerFactory& make_optimizer)
    : LocalView(replicas), optimizer_(make_optimizer(trained_[0])) {}

void LocalParameterServer::step(const std::vector<double>& shares) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < trained_[0].size(); ++i) {
    torch::Tensor sum;
    for (size_t replica = 0; replica < trained_.size(); ++replica) {
      const auto gradient = trained_[replica][i].grad();
      if (gradient.defined()) {
        const auto term =
            gradient.to(trained_[0][i].device()).mul(shares[replica]);
        sum = sum.defined() ? sum.add_(term) : term;
        count_move(replica, 0, gradient);
      }
    }
    trained_[0][i].mutable_grad() = sum;
  }
  optimizer_->step();
  broadcast();
}

LocalAllReduce::LocalAllReduce(const Replicas& replicas,
                               const dp::OptimizerFactory& make_optimizer)
    : LocalView(replicas) {
  for (const auto& parameters : trained_) {
    optimizers_.push_back(make_optimizer(parameters));
  }
}

void LocalAllReduce::step(const std::vector<double>& shares) {
  const torch::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(trained_.size());
  for (size_t i = 0; i < trained_[0].size(); ++i) {
    if (std::none_of(trained_.begin(), trained_.end(), [&](const auto& own) {
          return own[i].grad().defined();
        })) {
      continue;
    }
    std::vector<torch::Tensor> terms, results;
    for (size_t replica = 0; replica < trained_.size(); ++replica) {
      const auto& parameter = trained_[replica][i];
      const auto& gradient = parameter.grad();
      terms.push_back(
          (gradient.defined() ? gradient : at::zeros_like(parameter))
              .mul(shares[replica])
              .flatten());
      results.push_back(at::empty_like(terms.back()));
    }
    for (size_t owner = 0; owner < trained_.size(); ++owner) {
      const int64_t numel = terms[0].numel();
      const auto chunk = static_cast<int64_t>(owner);
      const int64_t begin = numel * chunk / count;
      const int64_t length = numel * (chunk + 1) / count - begin;
      const auto sum = results[owner].narrow(0, begin, length);
      for (size_t replica = 0; replica < trained_.size(); ++replica) {
        const auto term =
            terms[replica].narrow(0, begin, length).to(sum.device());
        replica == 0 ? sum.copy_(term) : sum.add_(term);
        count_move(replica, owner, sum);
      }
      for (size_t replica = 0; replica < trained_.size(); ++replica) {
        if (replica != owner) {
          results[replica].narrow(0, begin, length).copy_(sum);
        }
        count_move(owner, replica, sum);
      }
    }
    for (size_t replica = 0; replica < trained_.size(); ++replica) {
      auto& parameter = trained_[replica][i];
      parameter.mutable_grad() = results[replica].view(parameter.sizes());
    }
  }
  for (const auto& optimizer : optimizers_) {
    optimizer->step();
  }
}

}  // namespace samples
