#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/data_parallel/detail/devices.h"

namespace dp::detail {

/// A contiguous source tensor and its destinations: tensors of the same size on
/// other devices, or in other CPU memory.
struct Broadcast {
  at::Tensor from;
  std::vector<at::Tensor> to;
};

/// Runs `count` broadcasts from a device to others, in order. `make(i)` returns
/// broadcast i; its operations run on the stream that sends the broadcast.
/// Between GPUs LibTorch chooses NCCL or copies. May be called from any thread.
/// @param from  device of the source tensors of all broadcasts
/// @param to  devices of the destination tensors of all broadcasts
void broadcast(c10::Device from,
               const std::vector<c10::Device>& to,
               size_t count,
               const std::function<Broadcast(size_t i)>& make);

/// Returns the capacities of the GPUs in `devices`.
std::vector<GpuCapacity> gpu_capacities(
    const std::vector<c10::Device>& devices);

}  // namespace dp::detail
