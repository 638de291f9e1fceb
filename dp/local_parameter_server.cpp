#include "dp/local_parameter_server.h"

#include <c10/core/GradMode.h>

namespace dp {

LocalParameterServer::LocalParameterServer(
    const std::vector<std::shared_ptr<torch::nn::Module>>& replicas,
    const OptimizerFactory& make_optimizer)
    : replicas_(detail::list_replicas(replicas)),
      optimizer_(make_optimizer(replicas_.trained[0])),
      moved_(replicas.size()) {
  broadcast();
  moved_.assign(replicas.size(), MovedBytes());
}

void LocalParameterServer::step(const std::vector<double>& shares) {
  reduce(shares);
  optimizer_->step();
  broadcast();
}

void LocalParameterServer::reduce(const std::vector<double>& shares) {
  const c10::NoGradGuard no_grad;
  const auto weights = detail::complete_shares(shares, replicas_.size());
  for (size_t i = 0; i < replicas_.trained[0].size(); ++i) {
    at::Tensor served = replicas_.trained[0][i];
    at::Tensor sum;
    for (size_t replica = 0; replica < replicas_.size(); ++replica) {
      at::Tensor parameter = replicas_.trained[replica][i];
      const at::Tensor gradient = parameter.grad();
      if (!gradient.defined()) {
        continue;
      }
      const auto part = gradient.to(served.device()).mul(weights[replica]);
      sum = sum.defined() ? sum.add_(part) : part;
      detail::count_move(
          moved_, replica, 0, static_cast<int64_t>(gradient.nbytes()));
      parameter.mutable_grad() = at::Tensor();
    }
    served.mutable_grad() = sum;
  }
}

void LocalParameterServer::broadcast() {
  detail::broadcast_state(replicas_, moved_);
}

}  // namespace dp
