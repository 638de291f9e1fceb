#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/servers/detail/flat_tensors.h"

namespace dp::detail {

/// By parameter: 1 where there is a gradient, else 0.
using Presence = std::vector<int64_t>;

/// Why `presence` describes no gradients of so many parameters; "" when it
/// does. Pure.
std::string presence_problem(const Presence& presence, size_t parameters);

/// Copies the `.grad`s of parameters into `memory`, sparse ones as dense ones.
/// Leaves the memory of a parameter without a gradient as it is.
Presence copy_gradients(const std::vector<at::Tensor>& parameters,
                        const FlatTensors& memory);

/// Adds gradients up, in the order in which they are given.
class GradientSum {
 public:
  /// Scales the gradients of `term` in place. The first term's memory becomes
  /// the sum's.
  void add(const FlatTensors& term, const Presence& presence, double share);

  bool is_empty() const { return !memory_; }
  /// Undefined where no term had a gradient. They share the sum's memory.
  std::vector<at::Tensor> gradients() const;
  /// Gives back the memory of the first term.
  FlatTensors clear();

 private:
  std::optional<FlatTensors> memory_;
  Presence presence_;
};

}  // namespace dp::detail
