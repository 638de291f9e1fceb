#include "ddp/detail/reducer/bucket.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/DimVector.h>
#include <c10/util/strides.h>

namespace ddp::detail {
namespace {

/// The layout that autograd gives a gradient: its parameter's where that is
/// dense (channels_last stays so), else contiguous.
c10::DimVector strides_for(const at::Tensor& param) {
  return param.is_non_overlapping_and_dense()
             ? c10::DimVector(param.strides())
             : c10::contiguous_strides(param.sizes());
}

at::Tensor zeros_like_param(int64_t numel, const at::Tensor& param) {
  return at::zeros({numel}, param.options().requires_grad(false));
}

}  // namespace

at::Tensor piece_of(const at::Tensor& flat,
                    int64_t offset,
                    at::IntArrayRef sizes,
                    at::IntArrayRef strides) {
  auto piece = at::empty({0}, flat.options());
  return piece.set_(flat.storage(), offset, sizes, strides);
}

Bucket make_bucket(std::vector<Slot>& slots,
                   const std::vector<size_t>& members,
                   size_t bucket_index,
                   int64_t extra) {
  Bucket bucket;
  bucket.members = members;
  bucket.pending = members.size();
  if (Slot& first = slots[members.front()]; first.sparse) {
    first.bucket = bucket_index;
    first.ready = false;
    return bucket;
  }
  int64_t numel = extra;
  for (const size_t member : members) {
    numel += slots[member].param.numel();
  }
  bucket.flat = zeros_like_param(numel, slots[members.front()].param);
  int64_t offset = 0;
  for (const size_t member : members) {
    Slot& slot = slots[member];
    slot.view = piece_of(
        bucket.flat, offset, slot.param.sizes(), strides_for(slot.param));
    slot.bucket = bucket_index;
    slot.ready = false;
    offset += slot.param.numel();
  }
  return bucket;
}

Bucket make_spare_bucket(const at::Tensor& like) {
  Bucket bucket;
  bucket.flat = zeros_like_param(1, like);
  return bucket;
}

}  // namespace ddp::detail
