// For a LibTorch without CUDA.
#include "dp/detail/data_parallel/gpu.h"

namespace dp::detail {

void broadcast(const at::Tensor& from, std::vector<at::Tensor> to) {
  for (auto& tensor : to) {
    tensor.copy_(from);
  }
}

std::vector<GpuCapacity> gpu_capacities(const std::vector<c10::Device>&) {
  return {};
}

}  // namespace dp::detail
