#include "dp/detail/data_parallel/gpu.h"

#include <algorithm>

#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/cuda/comm.h>

namespace dp::detail {
namespace {

bool is_on_gpu(const at::Tensor& tensor) {
  return tensor.is_cuda();
}

}  // namespace

void broadcast(const at::Tensor& from, std::vector<at::Tensor> to) {
  if (is_on_gpu(from) && std::all_of(to.begin(), to.end(), is_on_gpu)) {
    // As bytes: NCCL knows neither complex numbers nor short integers.
    for (auto& tensor : to) {
      tensor = tensor.view(at::kByte);
    }
    torch::cuda::broadcast_out(from.view(at::kByte), to);
    return;
  }
  for (auto& tensor : to) {
    tensor.copy_(from);
  }
}

std::vector<GpuCapacity> gpu_capacities(
    const std::vector<c10::Device>& devices) {
  std::vector<GpuCapacity> result;
  for (const auto device : devices) {
    if (device.is_cuda()) {
      const auto* properties = at::cuda::getDeviceProperties(device.index());
      result.push_back({device,
                        static_cast<int64_t>(properties->totalGlobalMem),
                        properties->multiProcessorCount});
    }
  }
  return result;
}

}  // namespace dp::detail
