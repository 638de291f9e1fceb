#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace dp::detail {

/// The devices of a type that LibTorch sees.
struct DevicesOfType {
  int64_t count = 0;
  c10::DeviceIndex current = 0;  ///< this thread's
};
using LookUpDevices = std::function<DevicesOfType(c10::DeviceType type)>;

/// Asks LibTorch. The CPU is one device; a type without support counts 0.
DevicesOfType look_up_devices(c10::DeviceType type);

/// Pure, but for what `look_up` says: the devices asked for, each with its
/// number; all GPUs when none is asked for.
///
/// @throws c10::Error when one is not there, and when one other than the CPU
///   is named twice.
std::vector<c10::Device> resolve_devices(std::vector<c10::Device> asked,
                                         const LookUpDevices& look_up);

/// Pure, but for what `look_up` says: the device, with its number; one without
/// is the current one.
/// @throws c10::Error when it is not there.
c10::Device resolve_device(c10::Device asked, const LookUpDevices& look_up);

/// The same for where results lie: the device asked for, else the first of
/// `devices`, else the CPU.
c10::Device resolve_output_device(std::optional<c10::Device> asked,
                                  const std::vector<c10::Device>& devices,
                                  const LookUpDevices& look_up);

/// What makes one GPU slower or smaller than another.
struct GpuCapacity {
  c10::Device device;
  int64_t memory_bytes = 0;
  int64_t multiprocessors = 0;
};

/// Pure: a warning when a GPU has less than 75 % of the memory or of the
/// multiprocessors of another.
///
/// Source: _check_balance of torch/nn/parallel/data_parallel.py.
std::optional<std::string> warn_of_imbalance(
    const std::vector<GpuCapacity>& gpus);

}  // namespace dp::detail
