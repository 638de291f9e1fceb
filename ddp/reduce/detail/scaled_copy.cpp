#include "ddp/reduce/detail/scaled_copy.h"

#include <ATen/OpMathType.h>
#include <ATen/ScalarOps.h>
#include <ATen/ops/mul.h>

namespace ddp::detail {
namespace {

/// From this size on, the vector code and threads of an operator are worth its
/// call.
constexpr int64_t kLoopElements = 16'384;

/// Whether each tensor is one block of memory, with the same element order.
bool same_dense_layout(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_cpu() || !b.is_cpu() || a.scalar_type() != b.scalar_type() ||
      a.layout() != c10::kStrided || b.layout() != c10::kStrided) {
    return false;
  }
  if (a.is_contiguous() && b.is_contiguous()) {
    return true;
  }
  return a.is_non_overlapping_and_dense() && a.strides() == b.strides();
}

bool is_loop_type(c10::ScalarType type) {
  return type == c10::kFloat || type == c10::kDouble || type == c10::kHalf ||
         type == c10::kBFloat16;
}

template <typename T>
void scale_loop(T* to, const T* from, int64_t count, double scale) {
  using Op = at::opmath_type<T>;
  const auto factor = static_cast<Op>(scale);
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<T>(static_cast<Op>(from[i]) * factor);
  }
}

void scale_block(const at::Tensor& to, const at::Tensor& from, double scale) {
  void* target = to.mutable_data_ptr();
  const void* source = from.const_data_ptr();
  const int64_t count = to.numel();
  const auto run = [&](auto type) {
    using T = decltype(type);
    scale_loop(
        static_cast<T*>(target), static_cast<const T*>(source), count, scale);
  };
  switch (to.scalar_type()) {
    case c10::kFloat:
      return run(float{});
    case c10::kDouble:
      return run(double{});
    case c10::kHalf:
      return run(c10::Half{});
    default:
      return run(c10::BFloat16{});
  }
}

}  // namespace

ScaledCopy::ScaledCopy() {
  set_scale(1);
}

void ScaledCopy::set_scale(double scale) {
  if (scale == scale_ && factor_.defined()) {
    return;
  }
  scale_ = scale;
  factor_ = at::native::wrapped_scalar_tensor(scale);
}

void ScaledCopy::copy(const at::Tensor& to, const at::Tensor& from) const {
  if (to.numel() <= kLoopElements && is_loop_type(to.scalar_type()) &&
      same_dense_layout(to, from)) {
    scale_block(to, from, scale_);
    return;
  }
  at::Tensor out = to;
  at::mul_out(out, from, factor_);
}

}  // namespace ddp::detail
