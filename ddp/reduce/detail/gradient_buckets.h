#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/exchanges/exchange.h"
#include "ddp/reduce/bucket_plan.h"
#include "ddp/reduce/detail/bucket.h"
#include "ddp/tensors/streams.h"

namespace ddp::detail {

/// Memory in which gradients are reduced: the bucket of each gradient, copies
/// into and out of buckets, and which gradients have come in this pass. Does
/// not know ranks or autograd.
class GradientBuckets {
 public:
  /// The first plan is the prescribed one, or has the gradients in reverse
  /// order, because a backward pass reaches the last layers first.
  GradientBuckets(std::vector<NamedParameter> parameters,
                  const BucketCaps& caps,
                  const BucketLayout& layout);
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Number of gradients.
  size_t size() const { return slots_.size(); }
  const NamedParameter& parameter(size_t index) const {
    return slots_[index].parameter;
  }

  /// Buckets and the order of gradients in them. A gradient that never comes
  /// may be in none.
  const BucketPlan& plan() const { return plan_; }

  /// Pure: the plan for gradients that come in `order`.
  BucketPlan plan_for(const std::vector<size_t>& order) const;

  size_t bucket_count() const { return buckets_.size(); }
  bool is_full(size_t bucket) const { return buckets_[bucket]->is_full(); }
  GradientBucket bucket(size_t index) const;
  /// Makes the current stream wait for the work that fills the bucket.
  void join_streams(size_t bucket);

  /// Elements that belong to no gradient: the end of the last bucket if that is
  /// dense and the layout allows it, else memory of their own. `move_to` and
  /// `begin` may replace their memory.
  const at::Tensor& spare() const { return spare_; }
  bool spare_in_bucket() const { return spare_in_bucket_; }
  /// Makes the current stream wait for work on the spare elements that the
  /// stream of their allocation, or of the last call, has queued.
  void join_spare();

  /// Sets the factor for gradients that enter a bucket.
  void set_scale(double scale) { scaled_.set_scale(scale); }

  bool has_bucket(size_t index) const {
    return slots_[index].bucket.has_value();
  }

  /// Copies the gradient of `index` into its bucket. Returns whether the bucket
  /// is full.
  /// @throws c10::Error if it has come in this pass before, if it has no
  ///   bucket, or if its dtype or layout does not fit.
  bool add(size_t index);

  bool expects(size_t index) const {
    return has_bucket(index) && slots_[index].state == GradState::expected;
  }
  /// Gradients that this pass still expects, in ascending order.
  std::vector<size_t> expected() const;

  /// Fills the place of a gradient that does not come with the value of
  /// `.grad`, or zeros. `.grad` does not change.
  void fill_missing(size_t index);
  /// Makes `plan` the plan and moves all gradients, which have come, into its
  /// buckets. A gradient without a bucket has no memory, and is never expected
  /// or assigned.
  void move_to(BucketPlan plan);

  /// Begins a pass, which may overwrite the memory. A bucket gets new memory if
  /// it is aliased, see `Bucket::is_aliased`, unless the layout keeps memory or
  /// the memory is held.
  /// @param device  with it, a bucket of another device begins with its first
  ///                gradient: the thread of that device may accumulate into
  ///                the bucket's memory at this moment.
  void begin(std::optional<at::Device> device = std::nullopt);

  /// Holds the memory of all buckets while the result lives: `begin` replaces
  /// none, and a pass overwrites the gradients of the pass before, as with a
  /// layout that keeps memory.
  std::shared_ptr<const void> hold_memory();

  /// Whether a `BucketConsumer` consumes the buckets.
  bool are_consumed() const { return !layout_.prescribed.empty(); }
  /// Releases the memory of a bucket that was consumed.
  void release(size_t bucket) { buckets_[bucket]->release(); }

  /// Makes the bucket's memory the `.grad` of each parameter, or copies it into
  /// a tensor that the program has put there and holds. Resets `.grad` if the
  /// buckets are consumed.
  /// @param kept  parameters that keep their `.grad`, in ascending order.
  void assign_grads_except(const std::vector<size_t>& kept) const;

  /// Prepares for the next pass.
  void reset();

 private:
  void build();
  std::unique_ptr<Bucket> make_bucket(size_t index);
  void begin_bucket(size_t index);
  void replace_bucket(size_t index);

  std::vector<Slot> slots_;  // never moves: buckets point into it
  BucketCaps caps_;
  BucketLayout layout_;
  BucketPlan plan_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<bool> has_begun_;  // of each bucket, in this pass
  at::Tensor spare_;
  std::optional<StreamSequence> spare_streams_;  // on a GPU, if not in a bucket
  bool spare_in_bucket_ = false;
  std::weak_ptr<const void> hold_;  // of the memory
  ScaledCopy scaled_;
};

}  // namespace ddp::detail
