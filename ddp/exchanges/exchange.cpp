#include "ddp/exchanges/exchange.h"

#include <ATen/ops/zeros.h>

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/tensors/alias_without_view.h"

namespace ddp {

std::string GradientBucket::text() const {
  return "gradient bucket " + std::to_string(index + 1) + " of " +
         std::to_string(count);
}

std::vector<at::Tensor> GradientBucket::gradients() const {
  if (payload.is_sparse()) {
    return {payload};
  }
  std::vector<at::Tensor> pieces;
  pieces.reserve(parameters.size());
  int64_t offset = payload.storage_offset();
  for (const auto& parameter : parameters) {
    pieces.push_back(detail::gradient_piece(payload, offset, parameter.tensor));
    offset += parameter.tensor.numel();
  }
  return pieces;
}

void detail::check_covers(int size, int ranks) {
  TORCH_CHECK(size >= ranks,
              "Expected an exchange over the ",
              ranks,
              " ranks of the model, but got one over ",
              size,
              "; give both the same group");
}

double Exchange::scale(int ranks) const {
  return 1.0 / ranks;
}

at::Tensor Exchange::allocate(int64_t numel, const at::TensorOptions& options) {
  return at::zeros({numel}, options);
}

std::string Exchange::refuses_sparse() const {
  return "Expected dense gradients with this exchange";
}

c10::IValue Exchange::state_dict() const {
  return detail::new_dict();
}

void Exchange::check_state_dict(const c10::IValue& state) const {
  const detail::DictReader saved(state, "exchange");
  TORCH_CHECK(saved.entries().empty(),
              "Expected no state for an exchange that keeps none, but got ",
              saved.entries().begin()->key());
}

void Exchange::load_state_dict(const c10::IValue& state) {
  check_state_dict(state);
}

}  // namespace ddp
