#pragma once

#include <cstddef>
#include <optional>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Hash of a few elements of a parameter and its version. On a GPU, where
/// reading elements would stall the host, only of the version, which LibTorch's
/// SGD does not change. Calls no operator.
size_t mark_of(const at::Tensor& parameter);

/// Warns that each rank trains a model of its own.
void warn_of_local_training();

/// Detects training without any reduced pass: gradients come in passes of this
/// rank alone, and the parameters change in between. Follows one parameter, the
/// first that gets a gradient.
class UnsyncedTrainingWarning {
 public:
  /// Number of steps before the warning: more than an inner loop makes that
  /// restores the parameters.
  static constexpr int kSteps = 25;

  /// Whether `add` wants a gradient of a pass that is not reduced.
  bool follows(size_t index);

  /// @param mark  of the parameter now.
  /// @returns true once, at the last of `kSteps` steps.
  bool add(size_t mark);

  /// Called when a pass is reduced, or when local passes are intended: no
  /// warning follows.
  void stop() { is_over_ = true; }

 private:
  bool is_over_ = false;
  std::optional<size_t> index_;
  std::optional<size_t> mark_;
  int steps_ = 0;
};

}  // namespace ddp::detail
