#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace dp::detail {

/// Number of devices of one type that LibTorch sees, and the current one.
struct DevicesOfType {
  int64_t count = 0;
  c10::DeviceIndex current = 0;  ///< current device of this thread
};
using LookUpDevices = std::function<DevicesOfType(c10::DeviceType type)>;

/// Queries LibTorch. The CPU counts as one device. A type without support has a
/// count of 0.
DevicesOfType look_up_devices(c10::DeviceType type);

/// Returns the requested devices, each with its index. If none is requested,
/// returns all GPUs. Pure except for `look_up`.
///
/// @throws c10::Error if a device does not exist, or if a device other than the
///   CPU is named twice.
std::vector<c10::Device> resolve_devices(std::vector<c10::Device> asked,
                                         const LookUpDevices& look_up);

/// Returns the device with its index. A device without an index is the current
/// one. Pure except for `look_up`.
/// @throws c10::Error if the device does not exist.
c10::Device resolve_device(c10::Device asked, const LookUpDevices& look_up);

/// Properties that make one GPU slower or smaller than another.
struct GpuCapacity {
  c10::Device device;
  int64_t memory_bytes = 0;
  int64_t multiprocessors = 0;
};

/// Returns a warning if a GPU has less than 75 % of the memory or of the
/// multiprocessors of another GPU, otherwise std::nullopt. Pure.
///
/// Source: _check_balance of torch/nn/parallel/data_parallel.py.
std::optional<std::string> warn_of_imbalance(
    const std::vector<GpuCapacity>& gpus);

}  // namespace dp::detail
