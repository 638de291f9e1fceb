#include "ddp/job/average_parameters.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include "ddp/job/state_sync.h"
#include "ddp/job/wait.h"

namespace ddp::detail {
namespace {

void average_flat(c10d::Backend& group,
                  const std::vector<at::Tensor>& tensors,
                  const std::string& what) {
  std::vector<at::Tensor> pieces;
  pieces.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    pieces.push_back(tensor.reshape({-1}));
  }
  // Divides first, because a sum of half-precision values may overflow.
  std::vector<at::Tensor> flat{at::cat(pieces).div_(group.getSize())};
  detail::wait(group.allreduce(flat), group, what);
  int64_t offset = 0;
  for (const auto& tensor : tensors) {
    tensor.copy_(
        flat[0].narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace

std::vector<at::Tensor> trained_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> trained;
  for (const auto& parameter : parameters) {
    if (parameter.requires_grad()) {
      trained.push_back(parameter);
    }
  }
  return trained;
}

void average_over_ranks(c10d::Backend& group,
                        const std::vector<at::Tensor>& tensors,
                        const std::string& what) {
  const c10::NoGradGuard no_grad;
  for (const auto& alike : by_dtype_and_device(tensors)) {
    average_flat(group, alike, what);
  }
}

}  // namespace ddp::detail
