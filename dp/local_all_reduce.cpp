#include "dp/local_all_reduce.h"

#include <algorithm>
#include <map>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace dp {
namespace {

using Tensors = std::vector<at::Tensor>;

/// One tensor of a replica's gradients, times its share; zeros where it has
/// none.
at::Tensor flatten(const Tensors& parameters,
                   const std::vector<size_t>& members,
                   double share) {
  Tensors pieces;
  for (const size_t member : members) {
    const auto& gradient = parameters[member].grad();
    pieces.push_back(
        (gradient.defined() ? gradient : at::zeros_like(parameters[member]))
            .flatten());
  }
  return at::cat(pieces).mul_(share);
}

void unflatten(const at::Tensor& flat,
               const Tensors& parameters,
               const std::vector<size_t>& members) {
  int64_t offset = 0;
  for (const size_t member : members) {
    at::Tensor parameter = parameters[member];
    const auto piece = flat.narrow(0, offset, parameter.numel());
    parameter.mutable_grad() =
        at::empty_like(parameter).copy_(piece.view(parameter.sizes()));
    offset += parameter.numel();
  }
}

/// Replica c adds up chunk c of all and then gives it to all.
Tensors all_reduce(const Tensors& flats, std::vector<MovedBytes>& moved) {
  const auto replicas = static_cast<int64_t>(flats.size());
  const int64_t numel = flats[0].numel();
  Tensors results;
  for (const auto& flat : flats) {
    results.push_back(at::empty_like(flat));
  }
  for (int64_t c = 0; c < replicas; ++c) {
    const auto owner = static_cast<size_t>(c);
    const int64_t begin = numel * c / replicas;
    const int64_t length = numel * (c + 1) / replicas - begin;
    const int64_t bytes = length * flats[0].element_size();
    const auto sum = results[owner].narrow(0, begin, length);
    for (size_t replica = 0; replica < flats.size(); ++replica) {
      const auto part = flats[replica].narrow(0, begin, length);
      replica == 0 ? sum.copy_(part) : sum.add_(part.to(sum.device()));
      detail::count_move(moved, replica, owner, bytes);
    }
    for (size_t replica = 0; replica < flats.size(); ++replica) {
      if (replica != owner) {
        results[replica].narrow(0, begin, length).copy_(sum);
      }
      detail::count_move(moved, owner, replica, bytes);
    }
  }
  return results;
}

}  // namespace

LocalAllReduce::LocalAllReduce(
    const std::vector<std::shared_ptr<torch::nn::Module>>& replicas,
    const OptimizerFactory& make_optimizer)
    : replicas_(detail::list_replicas(replicas)), moved_(replicas.size()) {
  detail::broadcast_state(replicas_, moved_);
  moved_.assign(replicas.size(), MovedBytes());
  for (const auto& parameters : replicas_.trained) {
    optimizers_.push_back(make_optimizer(parameters));
  }
}

void LocalAllReduce::step(const std::vector<double>& shares) {
  reduce(shares);
  for (const auto& optimizer : optimizers_) {
    optimizer->step();
  }
}

void LocalAllReduce::reduce(const std::vector<double>& shares) {
  const c10::NoGradGuard no_grad;
  const auto weights = detail::complete_shares(shares, replicas_.size());
  // Those of a dtype travel as one; what nobody has stays undefined.
  std::map<c10::ScalarType, std::vector<size_t>> groups;
  for (size_t i = 0; i < replicas_.trained[0].size(); ++i) {
    if (std::any_of(
            replicas_.trained.begin(),
            replicas_.trained.end(),
            [&](const Tensors& own) { return own[i].grad().defined(); })) {
      groups[replicas_.trained[0][i].scalar_type()].push_back(i);
    }
  }
  for (const auto& [type, members] : groups) {
    Tensors flats;
    for (size_t replica = 0; replica < replicas_.size(); ++replica) {
      flats.push_back(
          flatten(replicas_.trained[replica], members, weights[replica]));
    }
    const auto results = all_reduce(flats, moved_);
    for (size_t replica = 0; replica < replicas_.size(); ++replica) {
      unflatten(results[replica], replicas_.trained[replica], members);
    }
  }
}

}  // namespace dp
