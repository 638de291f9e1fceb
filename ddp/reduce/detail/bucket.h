#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/exchanges/bucket_consumer.h"
#include "ddp/job/named_parameter.h"

namespace ddp::detail {

/// State of a gradient within a backward pass.
enum class GradState {
  expected,
  arrived,
  filled,  ///< it does not come; its place in the bucket is filled
};

/// A parameter and its gradient's place in a bucket.
struct Slot {
  NamedParameter parameter;
  /// The gradient in its bucket. Dense: memory of the bucket, in the
  /// parameter's shape. Sparse: its rows, undefined until it has come.
  at::Tensor content;
  std::optional<size_t> bucket;  ///< nullopt if the plan leaves it out
  GradState state = GradState::expected;
  bool is_view = false;  ///< `.grad` is always memory of the bucket
  /// The program holds the tensor in `.grad`, which gets a copy of the average.
  bool keeps_own = false;
};

/// Returns the dtype of a parameter's gradients: the parameter's, or the dtype
/// of `set_grad_dtype`.
c10::ScalarType gradient_dtype(const at::Tensor& parameter);

/// Returns true if another tensor or handle than `.grad` holds the memory of
/// `grad`, and it is not the bucket's.
bool is_held(const at::Tensor& grad, const at::Tensor& content);

/// Copies gradients into their bucket, multiplied by a scale. Small dense CPU
/// tensors are copied by a plain loop, because a call of an ATen operator costs
/// thousands of instructions, more than the copy itself. Results are bit for
/// bit equal to `at::mul`.
class ScaledCopy {
 public:
  ScaledCopy();

  /// Sets the scale; 1 at first.
  void set_scale(double scale);

  /// to = from * scale. `from` may be `to`. Shapes are equal, strides may
  /// differ.
  void copy(const at::Tensor& to, const at::Tensor& from) const;

  /// The scale as a tensor for operators.
  const at::Tensor& factor() const { return factor_; }

 private:
  double scale_ = 0;
  at::Tensor factor_;  // a wrapped number: does not promote types
};

/// Gradients that ranks exchange at once. `add` is called once per member and
/// pass; the bucket is full after the last one. `reset` prepares for the next
/// pass.
class Bucket {
 public:
  virtual ~Bucket() = default;
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;

  /// Copies the scaled `.grad` of a member into the bucket, or zeros if it is
  /// undefined. If the gradient has arrived and is dense, `.grad` becomes the
  /// bucket's memory. Returns whether the bucket is full.
  /// @throws c10::Error if the gradient's dtype or layout does not fit.
  virtual bool add(Slot& slot, const ScaledCopy& scaled) = 0;

  /// Moves a member's content in from another bucket.
  virtual void move_in(Slot& slot, const at::Tensor& content) = 0;

  /// The tensor that ranks exchange.
  virtual const at::Tensor& payload() const = 0;

  /// Whether a gradient, or an alias of it, is referenced although `.grad` has
  /// released it, so that the next pass would overwrite it.
  virtual bool is_aliased() const = 0;

  /// Begins a pass. Releases memory that only work on other streams may still
  /// read, if `.grad` has released it.
  virtual void begin() {}

  virtual void reset();

  /// Releases the memory of a payload that the exchange has consumed.
  virtual void release() {}

  /// Makes the current stream wait for the work that fills the bucket.
  virtual void join_streams() {}

  bool is_full() const { return pending_ == 0; }
  /// Called after `move_in` for all members.
  void mark_full() { pending_ = 0; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

 protected:
  explicit Bucket(std::vector<Slot*> members);

  const std::vector<Slot*>& members() const { return members_; }
  bool count_down() { return --pending_ == 0; }

 private:
  std::vector<Slot*> members_;  // in the order of their memory
  std::vector<NamedParameter> parameters_;
  size_t pending_;
};

/// Returns zeros of one dimension; see `Exchange::allocate`.
using Allocate =
    std::function<at::Tensor(int64_t numel, const at::TensorOptions& options)>;

/// Requirements of an exchange on the buckets' memory.
struct BucketLayout {
  int64_t spare_numel = 1;      ///< elements that belong to no gradient
  bool spare_in_bucket = true;  ///< the last bucket may carry them, if dense
  bool keeps_memory = false;    ///< `.grad` is always memory of its bucket
  Allocate allocate;
  /// The buckets of a `BucketConsumer`; empty for any other exchange.
  std::vector<PrescribedBucket> prescribed = {};
};

/// Bucket of dense gradients of one dtype and device. The contents of its
/// members lie in its memory. When gradients are copied depends on the device.
class DenseBucket : public Bucket {
 public:
  /// @param prescribed  where the gradients lie; null: one after the other.
  DenseBucket(std::vector<Slot*> members,
              const BucketLayout& layout,
              const PrescribedBucket* prescribed = nullptr);

  void move_in(Slot& slot, const at::Tensor& content) override;
  const at::Tensor& payload() const override { return flat_; }
  bool is_aliased() const override;
  void release() override;

  /// The last elements of the payload, which belong to no gradient; undefined
  /// if there are none.
  const at::Tensor& spare() const { return spare_; }

 protected:
  /// Allocates new memory for the payload and all its parts. Values are lost.
  void swap_memory();
  /// Allocates memory for a payload that was released.
  void need_memory();
  /// Gives `.grad` of a member the memory of the payload, after the copy of the
  /// gradient; releases `.grad` if the payload is consumed.
  void hand_over(Slot& slot, at::Tensor& grad) const;
  bool is_consumed() const { return allocate_ != nullptr; }

 private:
  const Allocate allocate_;  // of a consumed payload
  at::Tensor flat_;          // one dimension
  at::Tensor spare_;
  size_t owners_;  // tensors of this bucket that share its storage
};

/// @param prescribed  the bucket of a `BucketConsumer`, or null.
std::unique_ptr<DenseBucket> make_dense_bucket(
    std::vector<Slot*> members,
    const BucketLayout& layout,
    const PrescribedBucket* prescribed);

/// Makes the bucket of one sparse gradient.
std::unique_ptr<Bucket> make_sparse_bucket(Slot& slot);

}  // namespace ddp::detail
