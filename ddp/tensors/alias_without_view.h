#pragma once

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Returns a tensor that shares memory with `flat` without being a view of it.
/// `zero_grad()` may detach it in place, which autograd forbids for views.
///
/// @param offset  in elements of the storage.
at::Tensor alias_without_view(const at::Tensor& flat,
                              int64_t offset,
                              at::IntArrayRef sizes,
                              at::IntArrayRef strides);

/// Returns the part of `flat` for a gradient of `param`, in the layout that
/// autograd uses: the parameter's strides if they are dense (channels_last is
/// kept), else contiguous.
at::Tensor gradient_piece(const at::Tensor& flat,
                          int64_t offset,
                          const at::Tensor& param);

}  // namespace ddp::detail
