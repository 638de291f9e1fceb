#include "ddp/exchanges/forwarding_exchange.h"

#include <utility>

#include <c10/util/Exception.h>

namespace ddp {

ForwardingExchange::ForwardingExchange(std::shared_ptr<Exchange> inner,
                                       const char* what)
    : inner_(std::move(inner)) {
  TORCH_CHECK(inner_, "Expected an exchange for ", what, ", but got none");
}

double ForwardingExchange::scale(int ranks) const {
  return inner_->scale(ranks);
}

int64_t ForwardingExchange::multiple_of(int ranks) const {
  return inner_->multiple_of(ranks);
}

at::Tensor ForwardingExchange::allocate(int64_t numel,
                                        const at::TensorOptions& options) {
  return inner_->allocate(numel, options);
}

std::string ForwardingExchange::refuses_sparse() const {
  return inner_->refuses_sparse();
}

void ForwardingExchange::start(const GradientBucket& bucket) {
  inner_->start(bucket);
}

void ForwardingExchange::finish(const GradientBucket& bucket) {
  inner_->finish(bucket);
}

void ForwardingExchange::abandon() noexcept {
  inner_->abandon();
}

c10::IValue ForwardingExchange::state_dict() const {
  return inner_->state_dict();
}

void ForwardingExchange::check_state_dict(const c10::IValue& state) const {
  inner_->check_state_dict(state);
}

void ForwardingExchange::load_state_dict(const c10::IValue& state) {
  inner_->load_state_dict(state);
}

}  // namespace ddp
