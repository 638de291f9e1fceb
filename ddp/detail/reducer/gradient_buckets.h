#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/detail/reducer/bucket.h"
#include "ddp/detail/reducer/bucket_plan.h"
#include "ddp/detail/reducer/scaled_copy.h"

namespace ddp::detail {

/// The memory in which gradients are reduced: which bucket each one lies in,
/// and the way of a gradient in and out. Knows nothing of ranks or of autograd.
///
/// A dense gradient has a piece of its bucket's flat tensor, and `.grad`
/// becomes that piece. A sparse gradient is the whole content of a bucket of
/// its own.
class GradientBuckets {
 public:
  /// @param slots  name, parameter and kind of each gradient; the rest of a
  ///   slot is filled in here. Placed in reverse order: the backward pass meets
  ///   the last layers first.
  /// @param scale  what gradients are multiplied by on their way in.
  GradientBuckets(std::vector<Slot> slots,
                  const BucketCaps& caps,
                  double scale);

  const std::vector<Slot>& slots() const { return slots_; }
  std::vector<Slot>& slots() { return slots_; }
  /// In the order in which they are to be reduced.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  std::vector<Bucket>& buckets() { return buckets_; }

  /// Bucket and order of each gradient; a bucket without gradients left out.
  BucketPlan plan() const;

  /// Places the gradients anew, expecting them in `order`, and moves what the
  /// buckets hold. Returns false when all are in their place already.
  bool place(const std::vector<size_t>& order);

  /// Moves everything into new memory.
  void renew();

  /// Whether somebody still holds a gradient that `.grad` has let go, or an
  /// alias of one: the next pass would overwrite it.
  bool is_lent() const;

  /// Puts the gradient of `index` into its bucket, scaled, zeros where there is
  /// none. Returns true when it was the last one of its bucket.
  /// @throws c10::Error when the gradient's type or layout does not fit.
  bool add(size_t index);

  /// `.grad` of these parameters becomes what their buckets hold.
  void hand_out(const std::vector<size_t>& indices);

  /// Ready for the next pass.
  void reset();

  /// The last element of the last bucket, which belongs to no gradient. A
  /// bucket of its own where the last gradient is sparse.
  const at::Tensor& spare_element() const { return spare_; }

 private:
  void build(const BucketPlan& plan);
  void move_to(const BucketPlan& plan);
  void take(Slot& slot);
  void take_sparse(const Slot& slot);
  void take_all(Bucket& bucket);

  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  at::Tensor spare_;
  BucketCaps caps_;
  ScaledCopy copy_;
};

}  // namespace ddp::detail
