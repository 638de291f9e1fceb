#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/data_parallel/detail/devices.h"

namespace dp::detail {

/// One contiguous tensor, and tensors as large as it on other devices, or in
/// other memory of the CPU, into all of which it is copied.
struct Broadcast {
  at::Tensor from;
  std::vector<at::Tensor> to;
};

/// Makes `count` broadcasts from a device to others, one after the other.
/// `make(i)` returns the one numbered i; what it computes runs on the stream
/// that sends it. Between GPUs LibTorch chooses NCCL or copies. Any thread.
/// @param from,to  the devices of all the broadcasts' tensors
void broadcast(c10::Device from,
               const std::vector<c10::Device>& to,
               size_t count,
               const std::function<Broadcast(size_t i)>& make);

/// Capacities of the GPUs among `devices`.
std::vector<GpuCapacity> gpu_capacities(
    const std::vector<c10::Device>& devices);

}  // namespace dp::detail
