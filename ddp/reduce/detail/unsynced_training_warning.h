#pragma once

#include <cstddef>
#include <optional>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// A few numbers of a parameter in one: the same while nothing changes it. On a
/// GPU, where looking would stall the host, what writes past its version
/// (LibTorch's SGD) is not noticed. Reads memory; calls no operator.
size_t mark_of(const at::Tensor& parameter);

/// Says that each rank trains a model of its own.
void warn_of_local_training();

/// Notices a training whose passes are never reduced: gradients come in passes
/// of this rank alone, and the parameters change in between. Follows one
/// parameter, the first that gets a gradient.
class UnsyncedTrainingWarning {
 public:
  /// Steps of which one says that they are no accident: more than an inner loop
  /// takes that puts the parameters back.
  static constexpr int kSteps = 25;

  /// Whether `add` is to be told of a gradient in a pass that is not reduced.
  bool follows(size_t index);

  /// @param mark  of the parameter now.
  /// @returns true at the step that makes `kSteps` of them, once.
  bool add(size_t mark);

  /// Nothing will be said any more: a pass has been reduced, or those that are
  /// not are meant so.
  void stop() { is_over_ = true; }

 private:
  bool is_over_ = false;
  std::optional<size_t> index_;
  std::optional<size_t> mark_;
  int steps_ = 0;
};

}  // namespace ddp::detail
