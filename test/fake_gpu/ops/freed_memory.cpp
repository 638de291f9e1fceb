#include "test/fake_gpu/ops/freed_memory.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstring>

#include "test/fake_gpu/cudart/device.h"
#include "test/fake_gpu/engine/captures.h"
#include "test/fake_gpu/engine/engine.h"
#include "test/fake_gpu/engine/memory.h"

namespace fake_gpu {
namespace {

constexpr int kNan = 0xff;

using Entry = c10::CachingDeviceAllocator::TraceEntry;

/// Called with the allocator's lock held, so it calls no LibTorch function.
///
/// Memory of a graph is filled only where the graph itself frees it: later, a
/// launch may use the block. Other memory is not filled by a graph, because
/// another tensor may have it when the graph is launched.
void fill(const Entry& entry) {
  if (entry.action_ != Entry::FREE_COMPLETED) {
    return;
  }
  Stream* stream =
      stream_of(static_cast<cudaStream_t>(entry.stream_), entry.device_);
  const bool is_of_graph = entry.mempool_ != c10::MempoolId_t();
  if (is_of_graph != is_capturing(stream)) {
    return;
  }
  void* block = any_host_address(reinterpret_cast<void*>(entry.addr_));
  enqueue(stream, "freed memory", [block, bytes = entry.size_] {
    std::memset(block, kNan, bytes);
    return true;
  });
}

}  // namespace

void fill_freed_memory() {
  [[maybe_unused]] static const bool once = [] {
    at::globalContext().lazyInitDevice(c10::kCUDA);
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(&fill);
    return true;
  }();
}

}  // namespace fake_gpu
