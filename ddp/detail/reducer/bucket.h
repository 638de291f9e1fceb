#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ddp::detail {

/// One parameter and the place of its gradient in a bucket.
struct Slot {
  std::string name;
  at::Tensor param;
  bool sparse = false;  ///< its gradient is a sparse tensor, alone in a bucket
  at::Tensor view;      ///< shape and strides of `param`, memory of the bucket;
                        ///< undefined for a sparse gradient
  size_t bucket = 0;
  bool ready = false;        ///< its gradient has come in this backward pass
  bool accumulated = false;  ///< one came in a pass that was not reduced
};

/// Gradients of one dtype and device, reduced by one collective.
struct Bucket {
  at::Tensor
      flat;  ///< one dimension, the slots' memory; or the sparse gradient
  std::vector<size_t> members;  ///< indices of slots, in memory order
  size_t owners = 0;            ///< tensors of ours that share the memory
  size_t pending = 0;           ///< members whose gradient has not come yet
  c10::intrusive_ptr<c10d::Work> work;  ///< null until launched

  bool holds_sparse(const std::vector<Slot>& slots) const {
    return !members.empty() && slots[members.front()].sparse;
  }
};

/// Shares memory with `flat` without being a view of it: `zero_grad()` may
/// detach it in place, which autograd forbids for views.
at::Tensor piece_of(const at::Tensor& flat,
                    int64_t offset,
                    at::IntArrayRef sizes,
                    at::IntArrayRef strides);

/// Makes the flat tensor of `members` and points their slots' views into it.
/// That of a sparse gradient stays undefined until the gradient comes.
///
/// @param extra  elements added at the end of the flat tensor, set to zero.
Bucket make_bucket(std::vector<Slot>& slots,
                   const std::vector<size_t>& members,
                   size_t bucket_index,
                   int64_t extra);

/// A bucket of one element and no gradient.
Bucket make_spare_bucket(const at::Tensor& like);

}  // namespace ddp::detail
