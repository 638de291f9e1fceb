#pragma once

#include <cstddef>
#include <vector>

#include "ddp/reduce/bucket_plan.h"

namespace ddp::detail {

/// Parameters that the graph of a backward pass does not reach, so that their
/// buckets need not wait for the end of the pass. Does not know ranks or
/// autograd.
///
/// A nested backward pass may bring the gradient of an unreached parameter.
/// From then on the parameter is waited for. In the first pass every parameter
/// is.
class Unreached {
 public:
  explicit Unreached(size_t parameters) : nested_(parameters) {}

  /// Begins a pass.
  /// @param unreached  by the graph of the pass, in ascending order.
  /// @param expected  gradients that the pass still expects, in ascending
  ///   order.
  void begin(const std::vector<size_t>& unreached,
             const std::vector<size_t>& expected,
             const BucketPlan& plan);

  /// Whether this pass skips unreached parameters.
  bool is_known() const { return !left_.empty(); }

  /// Records that a gradient has come.
  void add(size_t index);

  /// Number of members that a bucket need not wait for.
  size_t left(size_t bucket) const {
    return is_known() ? left_[bucket] : size_t{0};
  }

  /// Prepares for the next pass.
  void reset();

 private:
  static constexpr size_t kReached = static_cast<size_t>(-1);

  bool is_first_ = true;
  std::vector<bool> nested_;       // learnt: comes although unreached
  std::vector<bool> unreached_;    // in this pass
  std::vector<size_t> bucket_of_;  // of skipped parameters; else kReached
  std::vector<size_t> left_;       // by bucket
};

}  // namespace ddp::detail
