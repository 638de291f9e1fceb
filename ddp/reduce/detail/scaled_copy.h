#pragma once

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Copies one gradient at a time into its bucket, scaled. For small dense CPU
/// tensors it is a plain loop: a call of an ATen operator costs thousands of
/// instructions, more than the work itself.
///
/// The results are bit for bit those of `at::mul`.
class ScaledCopy {
 public:
  ScaledCopy();

  /// What `scaled` multiplies by; 1 at first.
  void set_scale(double scale);

  /// to = from * scale. `from` may be `to`. Equal shapes; strides may differ.
  void scaled(const at::Tensor& to, const at::Tensor& from) const;

  const at::Tensor& factor() const { return factor_; }

 private:
  double scale_ = 0;
  at::Tensor factor_;  // a wrapped number: does not promote types
};

}  // namespace ddp::detail
