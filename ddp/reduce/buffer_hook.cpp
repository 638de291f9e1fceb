#include "ddp/reduce/buffer_hook.h"

#include <vector>

#include <c10/core/GradMode.h>

#include "ddp/job/state_sync.h"

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
  detail::average_over_ranks(group, averaged, "all-reduce of the buffers");
  detail::broadcast_from(0, group, others);
}

}  // namespace ddp
