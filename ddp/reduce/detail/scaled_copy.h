#pragma once

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Copies gradients into their bucket, multiplied by a scale. Small dense CPU
/// tensors are copied by a plain loop, because a call of an ATen operator costs
/// thousands of instructions, more than the copy itself. Results are bit for
/// bit equal to `at::mul`.
class ScaledCopy {
 public:
  ScaledCopy();

  /// Sets the scale; 1 at first.
  void set_scale(double scale);

  /// to = from * scale. `from` may be `to`. Shapes are equal, strides may
  /// differ.
  void copy(const at::Tensor& to, const at::Tensor& from) const;

  /// The scale as a tensor for operators.
  const at::Tensor& factor() const { return factor_; }

 private:
  double scale_ = 0;
  at::Tensor factor_;  // a wrapped number: does not promote types
};

}  // namespace ddp::detail
