#include <ATen/ops/_sparse_coo_tensor_with_dims.h>
#include <ATen/ops/mul.h>

#include "ddp/reduce/detail/bucket.h"

namespace ddp::detail {
namespace {

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

std::unique_ptr<Bucket> make_sparse_bucket(Slot& slot) {
  return std::make_unique<SparseBucket>(slot);
}

}  // namespace ddp::detail
