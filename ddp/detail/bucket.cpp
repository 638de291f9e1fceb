#include "ddp/detail/bucket.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/DimVector.h>
#include <c10/util/strides.h>

namespace ddp::detail {
namespace {

/// Shares memory with `flat` without being a view of it: `zero_grad()` may
/// detach it in place, which autograd forbids for views.
at::Tensor piece_of(const at::Tensor& flat,
                    int64_t offset,
                    const at::Tensor& like) {
  // The layout that autograd gives a gradient: its parameter's where that is
  // dense (channels_last stays so), else contiguous.
  const auto strides = like.is_non_overlapping_and_dense()
                           ? c10::DimVector(like.strides())
                           : c10::contiguous_strides(like.sizes());
  auto piece = at::empty({0}, flat.options());
  return piece.set_(flat.storage(), offset, like.sizes(), strides);
}

}  // namespace

Bucket make_bucket(std::vector<Slot>& slots,
                   const std::vector<size_t>& members,
                   size_t bucket_index,
                   int64_t extra) {
  int64_t numel = extra;
  for (const size_t member : members) {
    numel += slots[member].param.numel();
  }
  Bucket bucket;
  bucket.flat = at::zeros(
      {numel}, slots[members.front()].param.options().requires_grad(false));
  bucket.members = members;
  bucket.pending = members.size();
  int64_t offset = 0;
  for (const size_t member : members) {
    Slot& slot = slots[member];
    slot.view = piece_of(bucket.flat, offset, slot.param);
    slot.bucket = bucket_index;
    slot.ready = false;
    offset += slot.param.numel();
  }
  return bucket;
}

}  // namespace ddp::detail
