#pragma once

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Narrows both tensors, of the same sizes, to one of the elements of `to` that
/// share memory because it is expanded. copy_() refuses to write them all.
inline void narrow_expanded(at::Tensor& to, at::Tensor& from) {
  for (int64_t i = 0; i < to.dim(); ++i) {
    if (to.stride(i) == 0 && to.size(i) > 1) {
      to = to.narrow(i, 0, 1);
      from = from.narrow(i, 0, 1);
    }
  }
}

/// Copies into a tensor that may be expanded.
inline void copy_once(at::Tensor to, at::Tensor from) {
  narrow_expanded(to, from);
  to.copy_(from);
}

}  // namespace ddp::detail
