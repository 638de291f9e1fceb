#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace ddp::detail {

/// Returns a copy of the state of a device's default random generator.
at::Tensor generator_state(c10::Device device);

/// Sets the state of a device's default random generator.
void set_generator_state(c10::Device device, const at::Tensor& state);

/// Restores the default random generators of some devices when it is destroyed.
class GeneratorGuard {
 public:
  /// @param devices  distinct devices.
  explicit GeneratorGuard(const std::vector<c10::Device>& devices);
  ~GeneratorGuard();
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

}  // namespace ddp::detail
