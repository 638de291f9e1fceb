#include "dp/detail/data_parallel/groups.h"

namespace dp::detail {

std::vector<std::vector<size_t>> group_by_size(
    std::vector<ddp::detail::GradientSpec> tensors,
    const std::vector<size_t>& order,
    int64_t cap_bytes) {
  for (auto& tensor : tensors) {
    const auto width = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    // A sparse gradient is alone in its bucket.
    tensor.sparse = tensor.numel * width >= kBytesSentTogether;
  }
  return ddp::detail::plan_buckets(tensors, order, {cap_bytes, cap_bytes});
}

}  // namespace dp::detail
