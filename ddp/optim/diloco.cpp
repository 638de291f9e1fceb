#include "ddp/optim/diloco.h"

#include <c10/core/GradMode.h>

#include "ddp/detail/optim/average_parameters.h"
#include "ddp/detail/peers.h"

namespace ddp {
namespace {

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> copies;
  for (const auto& parameter : detail::trained_of(parameters)) {
    copies.push_back(parameter.detach().clone());
  }
  TORCH_CHECK(!copies.empty(),
              "Expected at least one parameter that requires a gradient for "
              "DiLoCo, but got none");
  return copies;
}

}  // namespace

DiLoCo::DiLoCo(const std::vector<at::Tensor>& parameters,
               const DiLoCoOptions& options)
    : options_(options),
      outer_(copies_of(parameters)),
      optimizer_(outer_,
                 torch::optim::SGDOptions(options.learning_rate())
                     .momentum(options.momentum())
                     .nesterov(options.nesterov())) {
  TORCH_CHECK(options.period() > 0,
              "Expected the period of DiLoCo to be positive, but got ",
              options.period());
}

bool DiLoCo::average_parameters(const std::vector<at::Tensor>& parameters) {
  if (++steps_ % options_.period() != 0) {
    return false;
  }
  const auto trained = detail::trained_of(parameters);
  TORCH_CHECK(trained.size() == outer_.size(),
              "Expected the ",
              outer_.size(),
              " parameters that DiLoCo was made for, but got ",
              trained.size());
  if (const auto group = detail::peers(options_.process_group())) {
    detail::average_over_ranks(*group, trained);
  }
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < outer_.size(); ++i) {
    outer_[i].mutable_grad() = outer_[i] - trained[i];
  }
  optimizer_.step();
  for (size_t i = 0; i < outer_.size(); ++i) {
    outer_[i].mutable_grad().reset();
    trained[i].copy_(outer_[i]);
  }
  return true;
}

void DiLoCo::set_steps(int64_t steps) {
  detail::check_steps(steps);
  steps_ = steps;
}

}  // namespace ddp
