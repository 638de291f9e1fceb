#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Finds out which parameters no rank has used: an all-reduce of one element
/// per parameter, and one further element for a flag.
class UsedMap {
 public:
  UsedMap(size_t parameters, c10::Device device);

  /// Starts and completes the all-reduce. Collective. On a GPU the current
  /// stream waits for it, the host does not.
  /// @param without  parameters that this rank has not used.
  /// @param flag  set if it is set on any rank.
  void exchange(c10d::Backend& group,
                const std::vector<size_t>& without,
                bool flag = false);

  /// Returns the parameters that no rank has used, in ascending order. Waits
  /// for a GPU.
  std::vector<size_t> unused() const;
  /// Returns true if a rank has set the flag. Waits for a GPU.
  bool has_flag() const;

 private:
  at::Tensor mine_;      // this rank's
  at::Tensor sums_;      // over ranks
  c10::Stream made_on_;  // may still work on the memory of both
  std::vector<size_t> without_;
  bool flag_ = false;
};

}  // namespace ddp::detail
