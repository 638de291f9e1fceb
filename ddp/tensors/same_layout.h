#pragma once

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Returns true if strided tensors have the same sizes and the same order of
/// elements in memory.
inline bool has_same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a.strides() == b.strides() ||
                                    (a.is_contiguous() && b.is_contiguous()));
}

}  // namespace ddp::detail
