#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/job/named_parameter.h"
#include "ddp/reduce/detail/scaled_copy.h"

namespace ddp::detail {

/// Where a gradient is in a backward pass.
enum class GradState {
  expected,
  arrived,
  absent,  ///< it does not come; its place in the bucket is filled
};

/// One parameter and the way of its gradient through a bucket.
struct Slot {
  NamedParameter parameter;
  /// The gradient as its bucket holds it. Dense: memory of the bucket, in the
  /// parameter's shape. Sparse: its rows, undefined until it has come.
  at::Tensor content;
  std::optional<size_t> bucket;  ///< none: the plan leaves it out
  GradState state = GradState::expected;
  bool accumulated = false;  ///< one came in a pass that was not reduced
};

/// What a parameter's gradients are to be of: its own dtype, or that of
/// `set_grad_dtype`.
c10::ScalarType gradient_dtype(const at::Tensor& parameter);

/// @throws c10::Error always, which names the parameter: its gradient is not of
///   the dtype that was expected.
[[noreturn]] void refuse_dtype(const NamedParameter& parameter,
                               c10::ScalarType expected,
                               const at::Tensor& grad);

/// Gradients that ranks exchange at once. Fills by `take`, one call for each
/// member; is full when all have come; `reset` makes it ready for the next
/// pass.
class Bucket {
 public:
  virtual ~Bucket() = default;
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;

  /// Puts the gradient of a member into the bucket, scaled, zeros where there
  /// is none; `.grad` of one that arrived becomes its content if that is dense.
  /// Returns true when it was the last one of the bucket.
  /// @throws c10::Error when the gradient's type or layout does not fit.
  virtual bool take(Slot& slot, const ScaledCopy& copy) = 0;

  /// Makes `content`, that of another bucket, the content of a member.
  virtual void move_in(Slot& slot, const at::Tensor& content) = 0;

  /// What the ranks exchange.
  virtual const at::Tensor& payload() const = 0;

  /// Whether somebody still holds a gradient that `.grad` has let go, or an
  /// alias of one: the next pass would overwrite it.
  virtual bool is_aliased() const = 0;

  /// A pass begins. Gives back memory that only work on other streams may still
  /// read, for such as has been let go.
  virtual void begin() {}

  virtual void reset();

  bool is_full() const { return pending_ == 0; }
  /// Members that have not come.
  size_t pending() const { return pending_; }
  /// All members are there already.
  void fill() { pending_ = 0; }
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

struct DenseLayout {
  int64_t multiple_of = 1;  ///< the payload is padded to a multiple of it
  int64_t spare_numel = 0;  ///< elements at its end that belong to no gradient
};

/// A bucket of dense gradients of one dtype and device; points its members'
/// contents into its memory. How it takes them depends on the device.
class DenseBucket : public Bucket {
 public:
  DenseBucket(std::vector<Slot*> members, const DenseLayout& layout);

  void move_in(Slot& slot, const at::Tensor& content) override;
  const at::Tensor& payload() const override { return flat_; }
  bool is_aliased() const override;

  /// The last elements of the payload, which belong to no gradient; undefined
  /// where the bucket has none.
  const at::Tensor& spare() const { return spare_; }

 protected:
  /// Other memory for the payload and all its pieces. What it holds is lost.
  void swap_memory();

 private:
  at::Tensor flat_;  // one dimension
  at::Tensor padding_;
  at::Tensor spare_;
  size_t owners_;  // tensors of ours that share the memory
};

std::unique_ptr<DenseBucket> make_dense_bucket(std::vector<Slot*> members,
                                               const DenseLayout& layout);

/// Makes the bucket of one sparse gradient.
std::unique_ptr<Bucket> make_sparse_bucket(Slot& slot);

}  // namespace ddp::detail
