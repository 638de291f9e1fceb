#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/detail/data_parallel/devices.h"

namespace dp::detail {

/// Copies `from`, one contiguous tensor, into all of `to`, which are as large
/// and lie on other devices. Between GPUs LibTorch chooses NCCL or copies. Any
/// thread.
void broadcast(const at::Tensor& from, std::vector<at::Tensor> to);

/// Capacities of the GPUs among `devices`.
std::vector<GpuCapacity> gpu_capacities(
    const std::vector<c10::Device>& devices);

}  // namespace dp::detail
