#include "test/fake_gpu/engine/memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "test/fake_gpu/counters.h"
#include "test/fake_gpu/cudart/device.h"
#include "test/fake_gpu/cudart/error.h"
#include "test/fake_gpu/engine/captures.h"
#include "test/fake_gpu/engine/engine.h"
#include "test/fake_gpu/log.h"

namespace fake_gpu {
namespace {

enum class Place { device, pinned, pageable };

Place place_of(const void* pointer) {
  if (device_of(pointer) >= 0) {
    return Place::device;
  }
  return is_pinned(pointer) ? Place::pinned : Place::pageable;
}

struct Kind {
  const char* label;
  uint64_t Counts::*counter;
};

Kind kind_of(Place to, Place from) {
  if (from == Place::device) {
    return to == Place::device
               ? Kind{"copy on device", &Counts::copies_on_device}
               : Kind{"copy to host", &Counts::copies_to_host};
  }
  return to == Place::device ? Kind{"copy to device", &Counts::copies_to_device}
                             : Kind{"copy on host", &Counts::copies_on_host};
}

/// Checks that the stream of a copy between two devices belongs to one of them.
void check_device(const void* to,
                  const void* from,
                  const Stream& stream,
                  const std::string& label) {
  const int to_device = device_of(to);
  const int from_device = device_of(from);
  const bool is_of_stream =
      to_device == stream.device || from_device == stream.device;
  if (!is_of_stream && (to_device >= 0 || from_device >= 0)) {
    fail(label + " on a stream of device " + std::to_string(stream.device) +
         " touches memory of device " +
         std::to_string(std::max(to_device, from_device)) + " alone");
  }
}

/// Copies as the driver does. Pageable source memory is read before the call
/// returns, and pageable target memory is written before it returns. Pinned
/// memory is accessed when the stream executes the copy.
cudaError_t copy(void* to, const void* from, size_t bytes, Stream* stream) {
  if (bytes == 0) {
    return cudaSuccess;
  }
  const Place to_place = place_of(to);
  const Place from_place = place_of(from);
  const bool pageable =
      to_place == Place::pageable || from_place == Place::pageable;
  const auto error = pageable && is_capturing(stream) ? check_host_wait(stream)
                                                      : check_enqueue(stream);
  if (error != cudaSuccess) {
    return report(error);
  }
  const Kind kind = kind_of(to_place, from_place);
  check_device(to, from, *stream, kind.label);
  count(kind.counter);
  std::shared_ptr<std::vector<char>> staged;
  if (from_place == Place::pageable) {
    const auto* begin = static_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    from = staged->data();
  }
  const Point end = enqueue(stream, kind.label, [to, from, bytes, staged] {
    std::memmove(
        any_host_address(to), any_host_address(const_cast<void*>(from)), bytes);
    return true;
  });
  if (to_place == Place::pageable) {
    count(&Counts::blocking_copies);
    wait_for(end);
  }
  return cudaSuccess;
}

cudaError_t set(void* to, int value, size_t bytes, Stream* stream) {
  const auto error = report(check_enqueue(stream));
  if (error == cudaSuccess) {
    count(&Counts::memsets);
    enqueue(stream, "memset", [to, value, bytes] {
      std::memset(host_address(to), value, bytes);
      return true;
    });
  }
  return error;
}

}  // namespace
}  // namespace fake_gpu

using fake_gpu::check_host_wait;
using fake_gpu::check_unsafe_call;
using fake_gpu::count;
using fake_gpu::Counts;
using fake_gpu::report;
using fake_gpu::stream_of;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const auto error = report(check_unsafe_call());
  if (error != cudaSuccess) {
    return error;
  }
  count(&Counts::allocations);
  *pointer = fake_gpu::allocate_device(fake_gpu::current_device(), bytes);
  return *pointer != nullptr ? cudaSuccess : report(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* pointer) {
  const auto error = report(check_unsafe_call());
  if (error != cudaSuccess) {
    return error;
  }
  count(&Counts::frees);
  if (pointer == nullptr) {
    return cudaSuccess;
  }
  // As the driver does: queued operations may still use the memory.
  fake_gpu::wait_for_device(fake_gpu::device_of(pointer));
  return fake_gpu::free_device(pointer) ? cudaSuccess
                                        : report(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, fake_gpu::current_device());
  *total = properties.totalGlobalMem;
  *free = fake_gpu::free_bytes(fake_gpu::current_device());
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  const auto error = report(check_unsafe_call());
  if (error != cudaSuccess) {
    return error;
  }
  count(&Counts::pinned_allocations);
  *pointer = fake_gpu::allocate_pinned(bytes);
  return *pointer != nullptr ? cudaSuccess : report(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* pointer) {
  const auto error = report(check_unsafe_call());
  if (error != cudaSuccess) {
    return error;
  }
  fake_gpu::wait_for_device(-1);
  return pointer == nullptr || fake_gpu::free_pinned(pointer)
             ? cudaSuccess
             : report(cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                     const void* pointer) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = fake_gpu::device_of(pointer);
  attributes->devicePointer = const_cast<void*>(pointer);
  attributes->hostPointer = const_cast<void*>(pointer);
  if (attributes->device >= 0) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->hostPointer = nullptr;
  } else if (fake_gpu::is_pinned(pointer)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = 0;
  } else {
    attributes->devicePointer = nullptr;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to,
                            const void* from,
                            size_t bytes,
                            cudaMemcpyKind,
                            cudaStream_t stream) {
  return fake_gpu::copy(to, from, bytes, stream_of(stream));
}

cudaError_t cudaMemcpy(void* to,
                       const void* from,
                       size_t bytes,
                       cudaMemcpyKind kind) {
  auto error = report(check_host_wait(stream_of(nullptr)));
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  }
  if (error != cudaSuccess) {
    return error;
  }
  if (fake_gpu::device_of(to) < 0 || fake_gpu::device_of(from) < 0) {
    fake_gpu::wait_for(fake_gpu::last_of(stream_of(nullptr)));
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(
    void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return fake_gpu::copy(to, from, bytes, stream_of(stream));
}

cudaError_t cudaMemsetAsync(void* pointer,
                            int value,
                            size_t bytes,
                            cudaStream_t stream) {
  return fake_gpu::set(pointer, value, bytes, stream_of(stream));
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  return cudaMemsetAsync(pointer, value, bytes, nullptr);
}

}  // extern "C"
