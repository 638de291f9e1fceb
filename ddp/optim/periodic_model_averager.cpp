#include "ddp/optim/periodic_model_averager.h"

#include <utility>

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include "ddp/detail/peers.h"
#include "ddp/detail/state_sync.h"
#include "ddp/detail/wait.h"

namespace ddp {
namespace {

void average(c10d::Backend& group, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> pieces;
  pieces.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    pieces.push_back(tensor.reshape({-1}));
  }
  std::vector<at::Tensor> flat{at::cat(pieces).div_(group.getSize())};
  detail::wait(group.allreduce(flat), group, "average of parameters");
  int64_t offset = 0;
  for (const auto& tensor : tensors) {
    tensor.copy_(
        flat[0].narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace

PeriodicModelAverager::PeriodicModelAverager(
    PeriodicModelAveragerOptions options)
    : options_(std::move(options)) {
  TORCH_CHECK(
      options_.period() > 0,
      "Expected the period of PeriodicModelAverager to be positive, but "
      "got ",
      options_.period());
  TORCH_CHECK(options_.warmup_steps() >= 0 && options_.steps() >= 0,
              "Expected warmup_steps and steps of PeriodicModelAverager not to "
              "be negative, but got ",
              options_.warmup_steps(),
              " and ",
              options_.steps());
}

bool PeriodicModelAverager::average_parameters(
    const std::vector<at::Tensor>& parameters) {
  const int64_t since = options_.steps() - options_.warmup_steps();
  options_.steps(options_.steps() + 1);
  if (since < 0 || since % options_.period() != 0) {
    return false;
  }
  const auto group = detail::peers(options_.process_group());
  if (!group) {
    return true;
  }
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> trained;
  for (const auto& parameter : parameters) {
    if (parameter.requires_grad()) {
      trained.push_back(parameter);
    }
  }
  for (const auto& tensors : detail::by_dtype_and_device(trained)) {
    average(*group, tensors);
  }
  return true;
}

}  // namespace ddp
