#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Counts reduced passes that no optimizer step followed. Ranks that step alike
/// have equal counts. Compares a few elements of a few parameters, because
/// LibTorch's optimizers write past autograd's version counters.
///
/// Parameters on a GPU are not compared, because reading them would stall the
/// host; `DesyncGuard` compares them.
class StepDetector {
 public:
  explicit StepDetector(const std::vector<at::Tensor>& parameters);

  /// Called when a pass begins. Returns how many earlier passes were not
  /// followed by a change of the parameters, or nothing if no parameter can be
  /// compared.
  std::optional<int64_t> count_passes_without_step();

 private:
  using Values = std::vector<char>;  // bytes

  std::vector<at::Tensor> compared_;
  Values values_;  // at the previous pass; empty before the first one
  int64_t without_step_ = 0;
};

}  // namespace ddp::detail
