#pragma once

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Shares memory with `flat` without being a view of it: `zero_grad()` may
/// detach it in place, which autograd forbids for views.
///
/// @param offset  in elements of the storage.
at::Tensor alias_without_view(const at::Tensor& flat,
                              int64_t offset,
                              at::IntArrayRef sizes,
                              at::IntArrayRef strides);

/// The piece for a gradient of `param`, in the layout that autograd gives it:
/// the parameter's where that is dense (channels_last stays so), else
/// contiguous.
at::Tensor gradient_piece(const at::Tensor& flat,
                          int64_t offset,
                          const at::Tensor& param);

}  // namespace ddp::detail
