#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace ddp::detail {

/// Saved states of the default random generators of some devices.
class GeneratorStates {
 public:
  /// Saves the current states.
  /// @param devices  distinct devices.
  explicit GeneratorStates(const std::vector<c10::Device>& devices);

  /// Restores the generators to the saved states.
  void restore() const;

  /// Drops the generators whose current state equals the saved one.
  void forget_unchanged();

  void forget(c10::Device device);

  /// Returns true if all generators are in their saved states.
  bool are_current() const;

  std::vector<c10::Device> devices() const;

 private:
  struct Generator {
    c10::Device device;
    at::Tensor state;
  };

  static bool is_current(const Generator& generator);

  std::vector<Generator> generators_;
};

}  // namespace ddp::detail
