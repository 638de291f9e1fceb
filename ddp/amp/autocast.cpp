#include "ddp/amp/autocast.h"

#include <ATen/autocast_mode.h>

namespace ddp {
namespace {

using namespace at::autocast;

c10::DeviceType checked_device(c10::DeviceType device_type) {
  TORCH_CHECK(is_autocast_available(device_type),
              "Expected a device type with autocast, such as CUDA or CPU, but "
              "got ",
              device_type);
  return device_type;
}

c10::ScalarType dtype_for(c10::DeviceType device_type,
                          const AutocastOptions& options) {
  const auto dtype = options.dtype().value_or(get_autocast_dtype(device_type));
  TORCH_CHECK(
      !options.enabled() || dtype == c10::kHalf || dtype == c10::kBFloat16,
      "Expected torch::kHalf or torch::kBFloat16 for autocast, but got ",
      dtype,
      "; to compute in the tensors' own dtypes use enabled(false)");
  return dtype;
}

}  // namespace

AutocastGuard::AutocastGuard(c10::DeviceType device_type,
                             const AutocastOptions& options)
    : device_type_(checked_device(device_type)),
      dtype_(get_autocast_dtype(device_type)),
      enabled_(is_autocast_enabled(device_type)),
      cache_enabled_(is_autocast_cache_enabled()) {
  set_autocast_dtype(device_type, dtype_for(device_type, options));
  set_autocast_enabled(device_type, options.enabled());
  set_autocast_cache_enabled(options.cache_enabled().value_or(cache_enabled_));
  increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  if (decrement_nesting() == 0) {
    clear_cache();
  }
  set_autocast_enabled(device_type_, enabled_);
  set_autocast_dtype(device_type_, dtype_);
  set_autocast_cache_enabled(cache_enabled_);
}

}  // namespace ddp
