#include "ddp/tensors/alias_without_view.h"

#include <ATen/ops/empty.h>
#include <c10/util/DimVector.h>
#include <c10/util/strides.h>

namespace ddp::detail {

at::Tensor alias_without_view(const at::Tensor& flat,
                              int64_t offset,
                              at::IntArrayRef sizes,
                              at::IntArrayRef strides) {
  auto piece = at::empty({0}, flat.options());
  return piece.set_(flat.storage(), offset, sizes, strides);
}

at::Tensor gradient_piece(const at::Tensor& flat,
                          int64_t offset,
                          const at::Tensor& param) {
  const auto strides = param.is_non_overlapping_and_dense()
                           ? c10::DimVector(param.strides())
                           : c10::contiguous_strides(param.sizes());
  return alias_without_view(flat, offset, param.sizes(), strides);
}

}  // namespace ddp::detail
