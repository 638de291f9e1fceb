#include "ddp/reduce/detail/bucket.h"

#include <algorithm>
#include <utility>

#include <ATen/OpMathType.h>
#include <ATen/ScalarOps.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include "ddp/tensors/alias_without_view.h"
#include "ddp/tensors/same_layout.h"
#include "ddp/tensors/streams.h"

namespace ddp::detail {
namespace {

/// From this size on, the vector code and threads of an operator are worth its
/// call.
constexpr int64_t kLoopElements = 16'384;

/// Whether each tensor is one block of memory, with the same element order.
bool are_alike_blocks(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && b.is_cpu() && a.scalar_type() == b.scalar_type() &&
         a.layout() == c10::kStrided && b.layout() == c10::kStrided &&
         a.is_non_overlapping_and_dense() && has_same_layout(a, b);
}

bool is_loop_type(c10::ScalarType type) {
  return type == c10::kFloat || type == c10::kDouble || type == c10::kHalf ||
         type == c10::kBFloat16;
}

template <typename T>
void scale_loop(T* to, const T* from, int64_t count, double scale) {
  using Op = at::opmath_type<T>;
  const auto factor = static_cast<Op>(scale);
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<T>(static_cast<Op>(from[i]) * factor);
  }
}

void scale_block(const at::Tensor& to, const at::Tensor& from, double scale) {
  void* target = to.mutable_data_ptr();
  const void* source = from.const_data_ptr();
  const int64_t count = to.numel();
  const auto run = [&](auto type) {
    using T = decltype(type);
    scale_loop(
        static_cast<T*>(target), static_cast<const T*>(source), count, scale);
  };
  switch (to.scalar_type()) {
    case c10::kFloat:
      return run(float{});
    case c10::kDouble:
      return run(double{});
    case c10::kHalf:
      return run(c10::Half{});
    default:
      return run(c10::BFloat16{});
  }
}

}  // namespace

ScaledCopy::ScaledCopy() {
  set_scale(1);
}

void ScaledCopy::set_scale(double scale) {
  if (scale == scale_ && factor_.defined()) {
    return;
  }
  scale_ = scale;
  factor_ = at::native::wrapped_scalar_tensor(scale);
}

void ScaledCopy::copy(const at::Tensor& to, const at::Tensor& from) const {
  if (to.numel() <= kLoopElements && is_loop_type(to.scalar_type()) &&
      are_alike_blocks(to, from)) {
    scale_block(to, from, scale_);
    return;
  }
  at::Tensor out = to;
  at::mul_out(out, from, factor_);
}

c10::ScalarType gradient_dtype(const at::Tensor& parameter) {
  return parameter.grad_dtype().value_or(parameter.scalar_type());
}

bool is_held(const at::Tensor& grad, const at::Tensor& content) {
  return grad.defined() && grad.layout() == c10::kStrided &&
         !grad.is_same(content) &&
         (grad.use_count() > 1 || grad.storage().use_count() > 1);
}

namespace {

/// Throws a c10::Error that names the parameter: its gradient does not have the
/// expected dtype.
[[noreturn]] void refuse_dtype(const NamedParameter& parameter,
                               c10::ScalarType expected,
                               const at::Tensor& grad) {
  TORCH_CHECK(
      false,
      "Expected a gradient of type ",
      expected,
      " for parameter ",
      parameter.name,
      ", but got ",
      grad.scalar_type(),
      "; call set_grad_dtype() before the module is wrapped, and put no "
      "gradient of another type into .grad");
}

void check_gradient(const Slot& slot, const at::Tensor& grad) {
  TORCH_CHECK(
      grad.layout() == c10::kStrided,
      "Expected a dense gradient for parameter ",
      slot.parameter.name,
      ", but got a sparse one; make its layer a torch::nn::Embedding or "
      "EmbeddingBag with sparse(true), which are known to have such");
  if (grad.dtype() != slot.content.dtype()) {
    refuse_dtype(slot.parameter, slot.content.scalar_type(), grad);
  }
}

/// Makes the bucket's memory the parameter's `.grad`, unless the program holds
/// the tensor that is there and autograd has added to: then that tensor gets
/// the average. A gradient that autograd has made in this pass has version 0.
void lend(Slot& slot, at::Tensor& grad) {
  slot.keeps_own = grad.defined() && !slot.is_view && !grad.is_inference() &&
                   grad._version() > 0 && is_held(grad, slot.content);
  if (!slot.keeps_own) {
    grad = slot.content;
  }
}

/// Copies `.grad`, or zeros if it is undefined, into the bucket.
void copy_in(const Slot& slot,
             const at::Tensor& grad,
             const ScaledCopy& scaled) {
  if (grad.defined()) {
    check_gradient(slot, grad);
    scaled.copy(slot.content, grad);
  } else {
    slot.content.zero_();
  }
}

/// Copies each gradient when it comes, while it is in the cache.
class HostBucket : public DenseBucket {
 public:
  using DenseBucket::DenseBucket;

  bool add(Slot& slot, const ScaledCopy& scaled) override {
    need_memory();
    at::Tensor& grad = slot.parameter.tensor.mutable_grad();
    copy_in(slot, grad, scaled);
    if (slot.state == GradState::arrived) {
      hand_over(slot, grad);
    }
    return count_down();
  }
};

/// Copies when all gradients have come: one kernel for the whole bucket is
/// faster than a launch per gradient.
class DeviceBucket : public DenseBucket {
 public:
  DeviceBucket(std::vector<Slot*> slots,
               const BucketLayout& layout,
               const PrescribedBucket* prescribed)
      : DenseBucket(std::move(slots), layout, prescribed),
        stream_(current_stream(payload().device())) {}

  /// Streams may still read a gradient that `.grad` has released. The allocator
  /// knows them (record_stream), the reference count on the host does not.
  void begin() override {
    const auto is_kept = [](const Slot* slot) {
      return slot->parameter.tensor.grad().is_same(slot->content);
    };
    if (!is_consumed() &&
        std::none_of(members().begin(), members().end(), is_kept)) {
      swap_memory();
      stream_ = current_stream(stream_.device());
    }
  }

  bool add(Slot& /*slot*/, const ScaledCopy& scaled) override {
    join_streams();
    const bool is_full = count_down();
    if (is_full) {
      copy_all(scaled);
    }
    return is_full;
  }

  /// Gradients may come on several streams. The copy runs on the last one, the
  /// exchange on the stream that starts it.
  void join_streams() override {
    join_stream(stream_);
    stream_ = current_stream(stream_.device());
  }

 private:
  void copy_all(const ScaledCopy& scaled) {
    need_memory();
    std::vector<at::Tensor> contents;
    std::vector<at::Tensor> grads;
    for (Slot* slot : members()) {
      at::Tensor& grad = slot->parameter.tensor.mutable_grad();
      if (!grad.defined()) {
        slot->content.zero_();
      } else if (!grad.is_same(slot->content)) {
        check_gradient(*slot, grad);
        contents.push_back(slot->content);
        grads.push_back(grad);
      }
    }
    if (!contents.empty()) {
      at::_foreach_copy_(contents, grads);
    }
    // The last references may be gone now, while their streams continue.
    std::for_each(grads.begin(), grads.end(), record_stream);
    grads.clear();  // `hand_over` asks whether the program holds a gradient
    for (Slot* slot : members()) {
      if (slot->state == GradState::arrived) {
        hand_over(*slot, slot->parameter.tensor.mutable_grad());
      }
    }
    payload().mul_(scaled.factor());
  }

  // Stream of the latest gradient or, before the first one, of the allocation:
  // work that it has queued may write to the memory.
  c10::Stream stream_;
};

int64_t numel_of(const std::vector<Slot*>& members) {
  int64_t numel = 0;
  for (const Slot* slot : members) {
    numel += slot->parameter.tensor.numel();
  }
  return numel;
}

at::TensorOptions payload_options(const at::Tensor& like) {
  return like.options().dtype(gradient_dtype(like)).requires_grad(false);
}

at::Tensor memory_for(const std::vector<Slot*>& members,
                      const BucketLayout& layout) {
  return layout.allocate(numel_of(members) + layout.spare_numel,
                         payload_options(members.front()->parameter.tensor));
}

/// Returns a payload that gets memory later.
at::Tensor without_memory(const std::vector<Slot*>& members,
                          const PrescribedBucket& prescribed) {
  const auto options = payload_options(members.front()->parameter.tensor);
  const c10::Storage storage(
      c10::Storage::use_byte_size_t(),
      prescribed.numel * static_cast<int64_t>(options.dtype().itemsize()),
      at::DataPtr(nullptr, options.device()),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  return at::empty({0}, options).set_(storage, 0, {prescribed.numel}, {1});
}

at::Tensor no_rows(const at::Tensor& like) {
  return at::_sparse_coo_tensor_with_dims(
      /*sparse_dim=*/1,
      /*dense_dim=*/like.dim() - 1,
      like.sizes(),
      like.options()
          .dtype(gradient_dtype(like))
          .requires_grad(false)
          .layout(c10::kSparse));
}

/// The rows of `grad`, which is dense if the parameter is also used outside of
/// the sparse layer.
at::Tensor rows_of(const NamedParameter& parameter, const at::Tensor& grad) {
  if (const auto dtype = gradient_dtype(parameter.tensor);
      grad.scalar_type() != dtype) {
    refuse_dtype(parameter, dtype, grad);
  }
  return grad.is_sparse() ? grad.coalesce() : grad.to_sparse(/*sparse_dim=*/1);
}

class SparseBucket : public Bucket {
 public:
  explicit SparseBucket(Slot& slot) : Bucket({&slot}), slot_(slot) {
    slot.content = at::Tensor();
  }

  bool add(Slot& slot, const ScaledCopy& scaled) override {
    const at::Tensor& grad = slot.parameter.tensor.grad();
    const at::Tensor rows = grad.defined() ? rows_of(slot.parameter, grad)
                                           : no_rows(slot.parameter.tensor);
    slot.content = at::mul(rows, scaled.factor()).coalesce();
    return count_down();
  }

  void move_in(Slot& slot, const at::Tensor& content) override {
    slot.content = content;
  }

  const at::Tensor& payload() const override { return slot_.content; }

  bool is_aliased() const override { return false; }  // new memory in each pass

  void reset() override {
    Bucket::reset();
    slot_.content = at::Tensor();
  }

 private:
  Slot& slot_;
};

}  // namespace

Bucket::Bucket(std::vector<Slot*> members)
    : members_(std::move(members)), pending_(members_.size()) {
  parameters_.reserve(members_.size());
  for (const Slot* slot : members_) {
    parameters_.push_back(slot->parameter);
  }
}

void Bucket::reset() {
  pending_ = members_.size();
}

DenseBucket::DenseBucket(std::vector<Slot*> slots,
                         const BucketLayout& layout,
                         const PrescribedBucket* prescribed)
    : Bucket(std::move(slots)),
      allocate_(prescribed == nullptr ? nullptr : layout.allocate),
      flat_(prescribed == nullptr ? memory_for(members(), layout)
                                  : without_memory(members(), *prescribed)) {
  TORCH_CHECK(flat_.storage_offset() == 0,
              "Expected Exchange::allocate to return a tensor that begins its "
              "storage, but got one at element ",
              flat_.storage_offset());
  int64_t offset = 0;
  for (size_t i = 0; i < members().size(); ++i) {
    Slot& slot = *members()[i];
    const at::Tensor& param = slot.parameter.tensor;
    slot.content = gradient_piece(
        flat_, prescribed == nullptr ? offset : prescribed->offsets[i], param);
    offset += param.numel();
  }
  if (layout.spare_numel > 0) {
    spare_ = alias_without_view(flat_, offset, {layout.spare_numel}, {1});
  }
  owners_ = flat_.storage().use_count();
}

void DenseBucket::swap_memory() {
  // The allocator uses the current device. With a module on several GPUs that
  // may be the device of other gradients.
  const c10::DeviceGuard guard(flat_.device());
  auto* storage = flat_.storage().unsafeGetStorageImpl();
  // Frees the old memory first, so that the allocator can return it again.
  storage->set_data_ptr_noswap(
      at::DataPtr(nullptr, storage->data_ptr().device()));
  storage->set_data_ptr_noswap(
      storage->allocator()->allocate(storage->nbytes()));
}

void DenseBucket::need_memory() {
  if (!is_consumed()) {
    return;
  }
  auto& storage = *flat_.storage().unsafeGetStorageImpl();
  if (storage.data() == nullptr) {
    const auto memory = allocate_(flat_.numel(), flat_.options());
    storage.set_data_ptr_noswap(std::move(memory.storage()
                                              .unsafeGetStorageImpl()
                                              ->_mutable_data_ptr_no_checks()));
  }
}

void DenseBucket::release() {
  record_stream(flat_);  // another stream may have allocated it
  flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(nullptr, flat_.device()));
}

void DenseBucket::hand_over(Slot& slot, at::Tensor& grad) const {
  if (is_consumed()) {
    grad.reset();
  } else {
    lend(slot, grad);
  }
}

void DenseBucket::move_in(Slot& slot, const at::Tensor& content) {
  const c10::NoGradGuard no_grad;
  slot.content.copy_(content);
  record_stream(content);  // of a bucket that another stream has allocated
  at::Tensor& grad = slot.parameter.tensor.mutable_grad();
  if (grad.is_same(content)) {
    grad = slot.content;
  }
}

bool DenseBucket::is_aliased() const {
  if (is_consumed()) {
    return false;
  }
  const auto has_holder = [](const Slot* slot) {
    return slot->content.use_count() > 1 &&
           !slot->parameter.tensor.grad().is_same(slot->content);
  };
  return flat_.storage().use_count() > owners_ ||
         std::any_of(members().begin(), members().end(), has_holder);
}

std::unique_ptr<DenseBucket> make_dense_bucket(
    std::vector<Slot*> members,
    const BucketLayout& layout,
    const PrescribedBucket* prescribed) {
  if (members.front()->parameter.tensor.is_cpu()) {
    return std::make_unique<HostBucket>(std::move(members), layout, prescribed);
  }
  return std::make_unique<DeviceBucket>(std::move(members), layout, prescribed);
}

std::unique_ptr<Bucket> make_sparse_bucket(Slot& slot) {
  return std::make_unique<SparseBucket>(slot);
}

}  // namespace ddp::detail
