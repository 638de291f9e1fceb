#include "ddp/reduce/detail/bucket.h"

#include <utility>

namespace ddp::detail {

c10::ScalarType gradient_dtype(const at::Tensor& parameter) {
  return parameter.grad_dtype().value_or(parameter.scalar_type());
}

void refuse_dtype(const NamedParameter& parameter,
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

}  // namespace ddp::detail
