#include "dp/data_parallel/detail/gpu.h"

#include <algorithm>
#include <iterator>
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

/// Returns the stream of the GPU that is reserved for broadcasts. The stream
/// comes from the high-priority pool. The program usually takes streams from
/// the normal pool, which reuses its streams after 32 requests.
c10::Stream broadcast_stream(c10::DeviceIndex device) {
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const auto known = streams.find(device);
  return known != streams.end()
             ? known->second
             : streams
                   .emplace(device,
                            at::cuda::getStreamFromPool(
                                /*isHighPriority=*/true, device))
                   .first->second;
}

/// Makes each of `streams` wait for the stream at the same position of
/// `others`.
void follow(const std::vector<c10::Stream>& streams,
            const std::vector<c10::Stream>& others) {
  for (size_t i = 0; i < streams.size(); ++i) {
    c10::Event event(c10::kCUDA);
    event.record(others[i]);
    streams[i].wait(event);
  }
}

void send(Broadcast broadcast) {
  auto& [from, to] = broadcast;
  const auto first_other =
      is_on_gpu(from) ? std::stable_partition(to.begin(), to.end(), is_on_gpu)
                      : to.begin();
  if (first_other != to.begin()) {
    // Sent as bytes, because NCCL supports neither complex numbers nor int16.
    std::vector<at::Tensor> bytes;
    std::transform(
        to.begin(),
        first_other,
        std::back_inserter(bytes),
        [](const at::Tensor& tensor) { return tensor.view(at::kByte); });
    torch::cuda::broadcast_out(from.view(at::kByte), bytes);
  }
  std::for_each(first_other, to.end(), [&from = from](at::Tensor& tensor) {
    tensor.copy_(from);
  });
}

}  // namespace

// A broadcast launches a kernel on each GPU, and each kernel waits for the
// others. A copy between GPUs by another thread makes their current streams
// wait for each other, possibly between two of these launches, which would be a
// deadlock. Broadcasts therefore run on streams of their own. The lock orders
// the broadcasts, and protects LibTorch's communicators, which have no lock.
void broadcast(c10::Device from,
               const std::vector<c10::Device>& to,
               size_t count,
               const std::function<Broadcast(size_t i)>& make) {
  static std::mutex broadcasts;
  const std::lock_guard lock(broadcasts);
  std::vector<c10::Stream> current;
  std::vector<c10::Stream> own;
  const auto add = [&](c10::Device device) {
    if (device.is_cuda()) {
      current.emplace_back(at::cuda::getCurrentCUDAStream(device.index()));
      own.push_back(broadcast_stream(device.index()));
    }
  };
  add(from);
  std::for_each(to.begin(), to.end(), add);
  follow(own, current);
  {
    const c10::MultiStreamGuard guard(own);
    for (size_t i = 0; i < count; ++i) {
      send(make(i));
    }
  }
  follow(current, own);
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
