#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Counts the passes after which the parameters did not change: ranks that step
/// alike count alike. Looks at a few elements of a few parameters, because
/// LibTorch's optimizers write past autograd's version counters.
///
/// Of parameters on a GPU it knows nothing, because reading them would stall
/// the host; `DesyncGuard` compares their values.
class UpdateWatch {
 public:
  /// Watches those on the CPU.
  explicit UpdateWatch(const std::vector<at::Tensor>& parameters);

  /// A pass begins. Returns how many passes before it were not followed by a
  /// change; nothing where no parameter can be watched.
  std::optional<int64_t> begin_pass();

 private:
  using Values = std::vector<char>;  // bytes

  std::vector<at::Tensor> watched_;
  Values values_;  // of the pass before; empty at first
  int64_t without_change_ = 0;
};

}  // namespace ddp::detail
