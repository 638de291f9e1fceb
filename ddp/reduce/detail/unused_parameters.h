#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Finds out which parameters no rank has used: an all-reduce of one element
/// per parameter.
class UsedMap {
 public:
  UsedMap(size_t parameters, c10::Device device);

  /// Starts and completes the all-reduce. Collective. On a GPU the current
  /// stream waits for it, the host does not.
  /// @param without  parameters that this rank has not used.
  void exchange(c10d::Backend& group, const std::vector<size_t>& without);

  /// Returns the parameters that no rank has used, in ascending order. Waits
  /// for a GPU, and so for the ranks of the group.
  std::vector<size_t> unused(const c10d::Backend& group) const;

 private:
  at::Tensor mine_;      // this rank's
  at::Tensor sums_;      // over ranks
  c10::Stream made_on_;  // may still work on the memory of both
  std::vector<size_t> without_;
};

/// Counts how often the gradient of each parameter comes in a backward pass of
/// a static graph. The first pass sets the counts that later passes expect.
/// Does not know ranks.
class StaticGraph {
 public:
  explicit StaticGraph(size_t parameters);

  /// Whether the first pass has ended.
  bool is_known() const { return is_known_; }

  /// Counts a gradient. Returns true if it is its parameter's last one in this
  /// pass; always false in the first pass.
  bool add(size_t index);

  /// Ends the first pass. Returns the parameters that got a gradient, in the
  /// order in which the last one of each came.
  std::vector<size_t> learn();

  /// Parameters without a gradient in the first pass, in ascending order.
  const std::vector<size_t>& unused() const { return unused_; }

  struct Change {
    size_t index;
    int64_t expected;
    int64_t came;
  };
  /// Parameters with another count in this pass than in the first one.
  std::vector<Change> changes() const;

  /// Prepares for the next pass.
  void reset();

 private:
  bool is_known_ = false;
  std::vector<int64_t> expected_;
  std::vector<int64_t> came_;
  std::vector<size_t> sequence_;  // of gradients in the first pass
  std::vector<size_t> unused_;
};

}  // namespace ddp::detail
