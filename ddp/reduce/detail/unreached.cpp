#include "ddp/reduce/detail/unreached.h"

#include <algorithm>

namespace ddp::detail {

void Unreached::begin(const std::vector<size_t>& unreached,
                      const std::vector<size_t>& expected,
                      const BucketPlan& plan) {
  unreached_.assign(nested_.size(), false);
  for (const size_t index : unreached) {
    unreached_[index] =
        std::binary_search(expected.begin(), expected.end(), index);
  }
  if (is_first_) {
    return;
  }
  bucket_of_.assign(nested_.size(), kReached);
  left_.assign(plan.size(), 0);
  for (size_t bucket = 0; bucket < plan.size(); ++bucket) {
    for (const size_t index : plan[bucket]) {
      if (unreached_[index] && !nested_[index]) {
        bucket_of_[index] = bucket;
        ++left_[bucket];
      }
    }
  }
}

void Unreached::add(size_t index) {
  if (unreached_.empty() || !unreached_[index]) {
    return;
  }
  nested_[index] = true;
  if (is_known() && bucket_of_[index] != kReached) {
    --left_[bucket_of_[index]];
  }
}

void Unreached::reset() {
  is_first_ = is_first_ && unreached_.empty();
  unreached_.clear();
  left_.clear();
}

}  // namespace ddp::detail
