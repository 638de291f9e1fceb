// Stub for a LibTorch without CUDA.
#include "dp/data_parallel/detail/gpu.h"

namespace dp::detail {

void broadcast(c10::Device,
               const std::vector<c10::Device>&,
               size_t count,
               const std::function<Broadcast(size_t i)>& make) {
  for (size_t i = 0; i < count; ++i) {
    const auto next = make(i);
    for (const auto& tensor : next.to) {
      tensor.copy_(next.from);
    }
  }
}

std::vector<GpuCapacity> gpu_capacities(const std::vector<c10::Device>&) {
  return {};
}

}  // namespace dp::detail
