#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/servers/detail/flat_tensors.h"

namespace dp::detail {

/// For each parameter 1 if it has a gradient, otherwise 0.
using Presence = std::vector<int64_t>;

/// Returns why `presence` is invalid for `parameters` parameters, or "" if it
/// is valid. Pure.
std::string presence_problem(const Presence& presence, size_t parameters);

/// Copies the `.grad`s of parameters to `memory`; sparse gradients become
/// dense. Leaves the memory of a parameter without a gradient unchanged.
Presence copy_gradients(const std::vector<at::Tensor>& parameters,
                        const FlatTensors& memory);

/// Sums gradients, in the order of the calls of `add`.
class GradientSum {
 public:
  /// Adds `term` * `share`. Scales the gradients of `term` in place. The memory
  /// of the first term becomes the memory of the sum.
  void add(const FlatTensors& term, const Presence& presence, double share);

  bool is_empty() const { return !memory_; }
  /// Returns the sums, which share this object's memory. The sum of a parameter
  /// is undefined if no term had a gradient.
  std::vector<at::Tensor> gradients() const;
  /// Empties the sum and returns its memory, that of the first term.
  FlatTensors clear();

 private:
  std::optional<FlatTensors> memory_;
  Presence presence_;
};

}  // namespace dp::detail
