#include "dp/detail/data_parallel/gpu.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <ATen/cuda/CUDAContext.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/cuda/comm.h>

namespace dp::detail {
namespace {

bool is_on_gpu(const at::Tensor& tensor) {
  return tensor.is_cuda();
}

c10::Stream current_stream_of(const at::Tensor& tensor) {
  return at::cuda::getCurrentCUDAStream(tensor.get_device());
}

/// A stream of the tensor's GPU on which nothing but broadcasts is queued.
c10::Stream broadcast_stream_of(const at::Tensor& tensor) {
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const auto device = tensor.device().index();
  const auto known = streams.find(device);
  return known != streams.end()
             ? known->second
             : streams
                   .emplace(device, at::cuda::getStreamFromPool(false, device))
                   .first->second;
}

/// Each of the streams waits for the other of its GPU.
void follow(const std::vector<c10::Stream>& streams,
            const std::vector<c10::Stream>& others) {
  for (size_t i = 0; i < streams.size(); ++i) {
    c10::Event event(c10::kCUDA);
    event.record(others[i]);
    streams[i].wait(event);
  }
}

// A broadcast is a launch on each GPU, and each waits for the others. Another
// thread's copy between GPUs makes their current streams wait for each other,
// and would do so between two launches: hence streams of their own. The lock
// is for their order, and for LibTorch's communicators, which have none.
void broadcast_to_gpus(const at::Tensor& from, std::vector<at::Tensor> to) {
  static std::mutex broadcasts;
  const std::lock_guard lock(broadcasts);
  std::vector<c10::Stream> current{current_stream_of(from)};
  std::vector<c10::Stream> own{broadcast_stream_of(from)};
  for (auto& tensor : to) {
    current.push_back(current_stream_of(tensor));
    own.push_back(broadcast_stream_of(tensor));
    // As bytes: NCCL knows neither complex numbers nor short integers.
    tensor = tensor.view(at::kByte);
  }
  follow(own, current);
  {
    const c10::MultiStreamGuard guard(own);
    torch::cuda::broadcast_out(from.view(at::kByte), to);
  }
  follow(current, own);
}

}  // namespace

void broadcast(const at::Tensor& from, std::vector<at::Tensor> to) {
  const auto first_other =
      is_on_gpu(from) ? std::stable_partition(to.begin(), to.end(), is_on_gpu)
                      : to.begin();
  if (first_other != to.begin()) {
    broadcast_to_gpus(from, {to.begin(), first_other});
  }
  std::for_each(
      first_other, to.end(), [&](at::Tensor& tensor) { tensor.copy_(from); });
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
