#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace ddp::detail {

/// States of the default random generators of some devices.
class GeneratorStates {
 public:
  /// The states now.
  /// @param devices  each once
  explicit GeneratorStates(const std::vector<c10::Device>& devices);

  /// Puts the generators into these states.
  void restore() const;

  /// Forgets the generators that still are in the state noted here.
  void forget_unchanged();

  void forget(c10::Device device);

  /// Whether all generators are in these states.
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
