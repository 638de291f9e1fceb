#include "dp/data_parallel/detail/devices.h"

#include <algorithm>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace dp::detail {

DevicesOfType look_up_devices(c10::DeviceType type) {
  if (type == c10::kCPU) {
    return {1, 0};
  }
  if (!c10::impl::hasDeviceGuardImpl(type)) {
    return {};
  }
  const c10::impl::VirtualGuardImpl impl(type);
  const int64_t count = impl.deviceCount();
  return {count, count > 0 ? impl.getDevice().index() : c10::DeviceIndex{0}};
}

c10::Device resolve_device(c10::Device asked, const LookUpDevices& look_up) {
  const auto there = look_up(asked.type());
  TORCH_CHECK(asked.index() < there.count && there.count > 0,
              "Expected a device that is there, but got ",
              asked,
              ", and LibTorch sees ",
              there.count,
              " of that type; check the driver and CUDA_VISIBLE_DEVICES");
  if (asked.is_cpu()) {
    return c10::kCPU;
  }
  return asked.has_index() ? asked : c10::Device(asked.type(), there.current);
}

std::vector<c10::Device> resolve_devices(std::vector<c10::Device> asked,
                                         const LookUpDevices& look_up) {
  if (asked.empty()) {
    const auto gpus = look_up(c10::kCUDA).count;
    for (int64_t i = 0; i < gpus; ++i) {
      asked.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(i));
    }
  }
  for (auto& device : asked) {
    device = resolve_device(device, look_up);
  }
  for (size_t i = 0; i < asked.size(); ++i) {
    TORCH_CHECK(
        asked[i].is_cpu() || std::count(asked.begin(),
                                        asked.begin() + static_cast<long>(i),
                                        asked[i]) == 0,
        "Expected different devices, but got ",
        asked[i],
        " twice");
  }
  return asked;
}

std::optional<std::string> warn_of_imbalance(
    const std::vector<GpuCapacity>& gpus) {
  using Amount = std::pair<const char*, int64_t GpuCapacity::*>;
  for (const auto& [what, amount] :
       {Amount("memory", &GpuCapacity::memory_bytes),
        Amount("multiprocessors", &GpuCapacity::multiprocessors)}) {
    const auto [least, most] =
        std::minmax_element(gpus.begin(),
                            gpus.end(),
                            [amount = amount](const auto& a, const auto& b) {
                              return a.*amount < b.*amount;
                            });
    if (!gpus.empty() && 4 * ((*least).*amount) < 3 * ((*most).*amount)) {
      return c10::str("There is an imbalance between your GPUs: ",
                      least->device,
                      " has less than 75% of the ",
                      what,
                      " of ",
                      most->device,
                      ". Leave it out of devices or CUDA_VISIBLE_DEVICES, or "
                      "give it less by chunk_sizes.");
    }
  }
  return std::nullopt;
}

}  // namespace dp::detail
