#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Hash of up to `count` elements, spread over a tensor; 0 for a tensor on a
/// GPU, because reading it would stall the host. Calls no operator.
size_t hash_elements(const at::Tensor& tensor, size_t count);

/// Counts reduced passes that no optimizer step followed. Ranks that step alike
/// have equal counts. Compares a few elements of a few parameters, because
/// LibTorch's optimizers write past autograd's version counters.
///
/// Parameters on a GPU are not compared; `DesyncGuard` compares them.
class StepDetector {
 public:
  explicit StepDetector(const std::vector<at::Tensor>& parameters);

  /// Called when a pass begins. Returns how many earlier passes were not
  /// followed by a change of the parameters, or nothing if no parameter can be
  /// compared.
  std::optional<int64_t> count_passes_without_step();

 private:
  std::vector<at::Tensor> compared_;
  std::optional<size_t> hash_;  // at the previous pass
  int64_t without_step_ = 0;
};

}  // namespace ddp::detail
