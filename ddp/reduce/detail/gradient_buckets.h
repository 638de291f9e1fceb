#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "ddp/exchanges/exchange.h"
#include "ddp/reduce/bucket_plan.h"
#include "ddp/reduce/detail/bucket.h"
#include "ddp/reduce/detail/scaled_copy.h"

namespace ddp::detail {

/// What an exchange asks of the buckets' memory.
struct BucketLayout {
  int64_t multiple_of = 1;  ///< of dense payloads' sizes
  int64_t spare_numel = 1;  ///< elements that belong to no gradient
  bool spare_rides = true;  ///< the last dense bucket may carry them
};

/// The memory in which gradients are reduced: which bucket each one lies in,
/// the way of a gradient in and out, and which have come in this pass. Knows
/// nothing of ranks or of autograd.
class GradientBuckets {
 public:
  /// Gradients are placed in reverse order: the backward pass meets the last
  /// layers first.
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

  std::vector<at::Tensor> tensors() const;

  /// Bucket and order of each gradient. Some may be in none: they do not come.
  const BucketPlan& plan() const { return plan_; }

  /// Pure: the plan for gradients that are expected to come in `order`.
  BucketPlan plan_for(const std::vector<size_t>& order) const;

  size_t bucket_count() const { return buckets_.size(); }
  bool is_full(size_t bucket) const { return buckets_[bucket]->is_full(); }
  /// Gradients that a bucket still waits for.
  size_t pending(size_t bucket) const { return buckets_[bucket]->pending(); }
  GradientBucket bucket(size_t index) const;

  /// Elements that belong to no gradient. The last ones of the last bucket,
  /// where that is dense and the layout lets them ride; else memory of their
  /// own. Other memory after `move_to` and `begin`.
  const at::Tensor& spare() const { return spare_; }
  /// Orders the current stream after the work on the spare elements that the
  /// stream of their memory has queued so far.
  void join_spare() const;
  bool spare_rides() const { return spare_rides_; }

  /// What gradients are multiplied by on their way in.
  void set_scale(double scale) { copy_.set_scale(scale); }

  /// Notes that a gradient has come in a pass that is not reduced.
  void note_accumulated(size_t index) { slots_[index].accumulated = true; }
  bool has_accumulated(size_t index) const { return slots_[index].accumulated; }

  bool has_bucket(size_t index) const {
    return slots_[index].bucket.has_value();
  }

  /// Puts the gradient of `index` into its bucket. Returns true when it was
  /// the last one of its bucket.
  /// @throws c10::Error when it has come in this pass already, or when its
  ///   type or layout does not fit.
  bool add(size_t index);

  bool expects(size_t index) const {
    return has_bucket(index) && slots_[index].state == GradState::expected;
  }
  /// Whether `fill_missing` has filled its place.
  bool is_absent(size_t index) const {
    return slots_[index].state == GradState::absent;
  }

  /// Gradients that this pass still expects, in ascending order.
  std::vector<size_t> expected() const;

  /// Fills the place of a gradient that does not come with what `.grad` holds,
  /// or zeros. `.grad` stays as it is.
  void fill_missing(size_t index);

  /// Makes `plan` the plan and moves the gradients, all of which have come. One
  /// that it leaves out costs no memory; it is never expected or handed out.
  void move_to(BucketPlan plan);

  /// A pass begins, which may write into the memory. A bucket of which somebody
  /// still holds a gradient that `.grad` has let go, or an alias of one, gets
  /// new memory, unless `keeps_memory`.
  void begin(bool keeps_memory);

  /// `.grad` of each parameter becomes what its bucket holds, but for these,
  /// in ascending order.
  void hand_out_all_but(const std::vector<size_t>& kept) const;

  /// Ready for the next pass.
  void reset();

 private:
  void build();
  std::unique_ptr<Bucket> make_bucket(size_t index);
  void renew(size_t index);

  std::vector<Slot> slots_;  // never moves: buckets point into it
  BucketCaps caps_;
  BucketLayout layout_;
  BucketPlan plan_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  at::Tensor spare_;
  std::optional<c10::Stream> spare_stream_;  // on a GPU, where none rides
  bool spare_rides_ = false;
  ScaledCopy copy_;
};

}  // namespace ddp::detail
