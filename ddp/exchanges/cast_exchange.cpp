#include "ddp/exchanges/cast_exchange.h"

#include <utility>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/tensors/streams.h"

namespace ddp {

CastExchange::CastExchange(c10::intrusive_ptr<c10d::Backend> group,
                           c10::ScalarType dtype)
    : CastExchange(std::make_shared<AllReduce>(std::move(group)), dtype) {}

CastExchange::CastExchange(std::shared_ptr<Exchange> inner,
                           c10::ScalarType dtype)
    : inner_(std::move(inner)), dtype_(dtype) {
  TORCH_CHECK(inner_,
              "Expected an exchange for the converted gradients, but got none");
  TORCH_CHECK(dtype == c10::kBFloat16 || dtype == c10::kHalf ||
                  dtype == c10::kFloat || dtype == c10::kDouble,
              "Expected gradients to travel as kBFloat16, kHalf, kFloat or "
              "kDouble, but got ",
              dtype);
}

void CastExchange::start(const GradientBucket& bucket) {
  wires_.resize(bucket.count);
  auto& wire = wires_[bucket.index];
  wire.reset();
  auto sent = bucket;
  if (!bucket.payload.is_sparse() && bucket.payload.is_floating_point() &&
      bucket.payload.scalar_type() != dtype_) {
    wire = bucket.payload.to(dtype_);
    sent.payload = wire;
  }
  inner_->start(sent);
}

void CastExchange::finish(const GradientBucket& bucket) {
  const auto wire = std::exchange(wires_[bucket.index], {});
  auto sent = bucket;
  if (wire.defined()) {
    sent.payload = wire;
  }
  inner_->finish(sent);
  if (wire.defined()) {
    at::Tensor(bucket.payload).copy_(wire);
    detail::record_stream(wire);
  }
}

}  // namespace ddp
