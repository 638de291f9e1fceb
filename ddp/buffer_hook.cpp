#include "ddp/buffer_hook.h"

#include <vector>

#include <c10/core/GradMode.h>
#include <torch/csrc/utils/tensor_flatten.h>

#include "ddp/detail/state_sync.h"
#include "ddp/detail/wait.h"

namespace ddp {

void average_buffers(c10d::Backend& group, const NamedBuffers& buffers) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> averaged;
  std::vector<at::Tensor> others;
  for (const auto& item : buffers) {
    const auto& buffer = item.value();
    const bool has_mean = buffer.is_floating_point() || buffer.is_complex();
    (has_mean ? averaged : others).push_back(buffer);
  }
  for (const auto& members : detail::by_dtype_and_device(averaged)) {
    // Divided first: a sum of half numbers may overflow.
    std::vector<at::Tensor> flat{
        torch::utils::flatten_dense_tensors(members).div_(group.getSize())};
    detail::wait(group.allreduce(flat), group, "all-reduce of the buffers");
    const auto means = torch::utils::unflatten_dense_tensors(flat[0], members);
    for (size_t i = 0; i < members.size(); ++i) {
      members[i].copy_(means[i]);
    }
  }
  detail::broadcast_from(0, group, others);
}

}  // namespace ddp
