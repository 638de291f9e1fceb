#include "ddp/exchanges/quantized_exchange.h"

#include <limits>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>

#include "ddp/job/peers.h"
#include "ddp/job/wait.h"
#include "ddp/tensors/streams.h"

namespace ddp {
namespace {

constexpr int64_t kScaleBytes = sizeof(float);
constexpr double kLargest = 127;

/// Returns the real numbers of the payload, in its memory.
at::Tensor numbers_of(const at::Tensor& payload) {
  return payload.is_complex() ? at::view_as_real(payload).flatten() : payload;
}

}  // namespace

at::Tensor detail::quantize(const at::Tensor& rows, int64_t block) {
  const auto blocks = rows.view({rows.size(0), -1, block});
  // A block of zeros needs a scale too, and 1 / scale must be finite.
  const auto scales = blocks.abs()
                          .amax(2, /*keepdim=*/true)
                          .div_(kLargest)
                          .clamp_min_(std::numeric_limits<float>::min());
  const auto numbers = blocks.div(scales).round_().nan_to_num_(0).to(at::kChar);
  return at::cat({numbers.view({rows.size(0), -1}).view(at::kByte),
                  scales.view({rows.size(0), -1}).view(at::kByte)},
                 1);
}

at::Tensor detail::dequantize(const at::Tensor& code, int64_t block) {
  const int64_t blocks = code.size(1) / (block + kScaleBytes);
  const auto numbers = code.narrow(1, 0, blocks * block)
                           .view(at::kChar)
                           .to(at::kFloat)
                           .reshape({code.size(0), blocks, block});
  const auto scales = code.narrow(1, blocks * block, blocks * kScaleBytes)
                          .view(at::kFloat)
                          .unsqueeze(2);
  return (numbers * scales).view({code.size(0), blocks * block});
}

QuantizedExchange::QuantizedExchange(c10::intrusive_ptr<c10d::Backend> group,
                                     int64_t block)
    : group_(detail::required_group(std::move(group))), block_(block) {
  TORCH_CHECK(block > 0 && block % kScaleBytes == 0,
              "Expected blocks of numbers to be quantized to be a multiple of ",
              kScaleBytes,
              " long, but got ",
              block);
}

double QuantizedExchange::scale(int ranks) const {
  detail::check_covers(group_->getSize(), ranks);
  return 1.0 / ranks;
}

void QuantizedExchange::start(const GradientBucket& given) {
  buckets_.resize(given.count);
  auto& bucket = buckets_[given.index];
  if (given.payload.numel() == 0) {
    return;
  }
  const auto numbers = numbers_of(given.payload);
  const int64_t multiple = group_->getSize() * block_;
  const int64_t padding = (multiple - numbers.numel() % multiple) % multiple;
  bucket.sent =
      detail::quantize(at::constant_pad_nd(numbers.to(at::kFloat), {0, padding})
                           .view({group_->getSize(), -1}),
                       block_);
  bucket.received = at::empty_like(bucket.sent);
  std::vector<int64_t> equal_parts;
  bucket.work = group_->alltoall_base(
      bucket.received, bucket.sent, equal_parts, equal_parts);
}

void QuantizedExchange::finish(const GradientBucket& given) {
  const auto bucket = std::exchange(buckets_[given.index], {});
  if (!bucket.work) {
    return;
  }
  const auto name = given.text();
  detail::wait(bucket.work, *group_, "all-to-all of " + name);
  auto mine = detail::quantize(
      detail::dequantize(bucket.received, block_).sum(0, /*keepdim=*/true),
      block_);
  detail::record_stream(bucket.received);
  // The all-to-all read `sent`, and this stream has waited for it.
  detail::record_stream(bucket.sent);
  auto all = at::empty({group_->getSize(), mine.size(1)}, mine.options());
  detail::wait(
      group_->_allgather_base(all, mine), *group_, "all-gather of " + name);
  auto numbers = numbers_of(given.payload);
  numbers.copy_(
      detail::dequantize(all, block_).flatten().narrow(0, 0, numbers.numel()));
}

}  // namespace ddp
