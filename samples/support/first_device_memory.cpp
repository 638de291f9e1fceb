#include "samples/support/first_device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace samples {
namespace {

enum Owner : size_t { kFirst, kOther, kOwners };

c10::CachingAllocator::Stat allocated_bytes(c10::Device device) {
  return at::getDeviceAllocator(device.type())
      ->getDeviceStats(device.index())
      .allocated_bytes[static_cast<size_t>(
          c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

FirstDeviceMemory::FirstDeviceMemory(c10::Device first)
    : first_(first), meter_(kOwners) {
  if (first.is_cpu()) {
    meter_.start();
    caller_.emplace(meter_, kFirst);
  }
}

void FirstDeviceMemory::reset() {
  if (first_.is_cpu()) {
    meter_.reset_peak();
    start_ = meter_.live()[kFirst];
  } else {
    at::getDeviceAllocator(first_.type())->resetPeakStats(first_.index());
    start_ = allocated_bytes(first_).current;
  }
}

int64_t FirstDeviceMemory::peak() const {
  return (first_.is_cpu() ? meter_.peak()[kFirst]
                          : allocated_bytes(first_).peak) -
         start_;
}

MemoryMeter::Scope FirstDeviceMemory::scope(bool is_first) const {
  return {meter_, is_first ? kFirst : kOther};
}

}  // namespace samples
