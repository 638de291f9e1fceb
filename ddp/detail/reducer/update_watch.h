#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Counts the passes after which the parameters did not change: ranks that step
/// alike count alike. Looks at a few elements of a few parameters, because
/// LibTorch's optimizers write past autograd's version counters. Of parameters
/// on a GPU, where looking would stall the host, it knows nothing and says 0.
class UpdateWatch {
 public:
  explicit UpdateWatch(const std::vector<at::Tensor>& parameters);

  /// A pass begins. Returns how many passes before it were not followed by a
  /// change.
  int64_t begin_pass();

 private:
  std::vector<at::Tensor> watched_;
  std::vector<uint64_t> values_;  // when the pass before began; empty at first
  std::vector<uint64_t> now_;
  int64_t without_change_ = 0;
};

}  // namespace ddp::detail
