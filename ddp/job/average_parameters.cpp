#include "ddp/job/average_parameters.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/utils/tensor_flatten.h>

#include "ddp/job/state_sync.h"
#include "ddp/job/wait.h"

namespace ddp::detail {
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
                        const std::string& what,
                        int64_t message_bytes) {
  const c10::NoGradGuard no_grad;
  for (const auto& message : messages_of(tensors, message_bytes)) {
    // Divides first, because a sum of half-precision values may overflow. One
    // tensor alone is not copied by the flattening, and must not change if the
    // sum fails.
    auto all = torch::utils::flatten_dense_tensors(message);
    std::vector<at::Tensor> flat{message.size() == 1
                                     ? all.div(group.getSize())
                                     : all.div_(group.getSize())};
    wait(group.allreduce(flat), group, what);
    const auto means = torch::utils::unflatten_dense_tensors(flat[0], message);
    for (size_t i = 0; i < message.size(); ++i) {
      message[i].copy_(means[i]);
    }
  }
}

}  // namespace ddp::detail
