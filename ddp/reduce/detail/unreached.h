#pragma once

#include <cstddef>
#include <vector>

#include "ddp/reduce/bucket_plan.h"

namespace ddp::detail {

/// Parameters that the graph of a backward pass does not reach, so that their
/// buckets need not wait for its end. Knows nothing of ranks or of autograd.
///
/// A gradient may come all the same, of a backward pass inside the pass. Which
/// parameters have such is learnt in the passes; the first one learns alone.
class Unreached {
 public:
  explicit Unreached(size_t parameters) : nested_(parameters) {}

  /// What a pass does not reach, and what it still expects: both in ascending
  /// order.
  void begin(const std::vector<size_t>& unreached,
             const std::vector<size_t>& expected,
             const BucketPlan& plan);

  /// Whether anything is known of this pass.
  bool is_known() const { return !left_.empty(); }

  /// A gradient has come.
  void add(size_t index);

  /// How many members of a bucket are not reached, and have not come.
  size_t left(size_t bucket) const {
    return is_known() ? left_[bucket] : size_t{0};
  }

  /// Ready for the next pass.
  void reset();

 private:
  static constexpr size_t kReached = static_cast<size_t>(-1);

  bool is_first_ = true;
  std::vector<bool> nested_;       // comes though it is not reached
  std::vector<bool> unreached_;    // in this pass
  std::vector<size_t> bucket_of_;  // of what is not waited for; else kReached
  std::vector<size_t> left_;       // by bucket
};

}  // namespace ddp::detail
