#include "dp/detail/parameter_server/local_replicas.h"

#include <c10/core/GradMode.h>

#include "ddp/detail/named_tensors.h"

namespace dp::detail {
namespace {

using ddp::NamedParameter;

std::vector<NamedParameter> list_state(const torch::nn::Module& module) {
  auto state = ddp::detail::unique(module.named_parameters());
  for (auto& buffer : ddp::detail::unique(module.named_buffers())) {
    state.push_back(std::move(buffer));
  }
  return state;
}

void check_alike(const std::vector<NamedParameter>& first,
                 const std::vector<NamedParameter>& other,
                 size_t replica) {
  TORCH_CHECK(first.size() == other.size(),
              "Expected replicas of one structure, but replica 0 has ",
              first.size(),
              " parameters and buffers and replica ",
              replica,
              " has ",
              other.size());
  for (size_t i = 0; i < first.size(); ++i) {
    const auto& a = first[i].tensor;
    const auto& b = other[i].tensor;
    TORCH_CHECK(first[i].name == other[i].name && a.sizes() == b.sizes() &&
                    a.scalar_type() == b.scalar_type() &&
                    a.requires_grad() == b.requires_grad(),
                "Expected replicas of one structure, but ",
                first[i].name,
                " of replica 0 (",
                a.scalar_type(),
                " ",
                a.sizes(),
                a.requires_grad() ? "" : ", frozen",
                ") is ",
                other[i].name,
                " of replica ",
                replica,
                " (",
                b.scalar_type(),
                " ",
                b.sizes(),
                b.requires_grad() ? "" : ", frozen",
                ")");
  }
}

}  // namespace

LocalReplicas list_replicas(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  TORCH_CHECK(!modules.empty(), "Expected at least one replica, but got none");
  LocalReplicas replicas;
  std::vector<NamedParameter> first;
  for (size_t i = 0; i < modules.size(); ++i) {
    TORCH_CHECK(modules[i] != nullptr,
                "Expected a module as replica ",
                i,
                ", but got an empty pointer");
    const auto state = list_state(*modules[i]);
    if (i == 0) {
      first = state;
    }
    check_alike(first, state, i);
    replicas.state.push_back(ddp::detail::tensors_of(state));
    replicas.trained.emplace_back();
    for (const auto& tensor : replicas.state.back()) {
      if (tensor.requires_grad()) {
        replicas.trained.back().push_back(tensor);
      }
    }
  }
  TORCH_CHECK(!replicas.trained.front().empty(),
              "Expected a module with a parameter that requires a gradient, "
              "but got none");
  return replicas;
}

void broadcast_state(const LocalReplicas& replicas,
                     std::vector<MovedBytes>& moved) {
  const c10::NoGradGuard no_grad;
  for (size_t replica = 1; replica < replicas.size(); ++replica) {
    for (size_t i = 0; i < replicas.state[0].size(); ++i) {
      const auto& source = replicas.state[0][i];
      at::Tensor target = replicas.state[replica][i];
      target.copy_(source);
      count_move(moved, 0, replica, static_cast<int64_t>(source.nbytes()));
    }
  }
}

void count_move(std::vector<MovedBytes>& moved,
                size_t from,
                size_t to,
                int64_t bytes) {
  if (from != to) {
    moved[from].sent += bytes;
    moved[to].received += bytes;
  }
}

std::vector<double> complete_shares(const std::vector<double>& shares,
                                    size_t replicas) {
  if (shares.empty()) {
    return std::vector<double>(replicas, 1.0 / static_cast<double>(replicas));
  }
  TORCH_CHECK(shares.size() == replicas,
              "Expected a share for each of ",
              replicas,
              " replicas, but got ",
              shares.size());
  return shares;
}

}  // namespace dp::detail
