#include "ddp/exchanges/coded_exchange.h"

#include <limits>
#include <utility>

#include <ATen/ops/cat.h>
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

}  // namespace

NarrowCode::NarrowCode(at::ScalarType dtype) : dtype_(dtype) {
  TORCH_CHECK(
      dtype == at::kBFloat16 || dtype == at::kHalf,
      "Expected gradients to be rounded to kBFloat16 or kHalf, but got ",
      dtype);
}

at::Tensor NarrowCode::encode(const at::Tensor& rows) const {
  return rows.to(dtype_).view(at::kByte);
}

at::Tensor NarrowCode::decode(const at::Tensor& code) const {
  return code.view(dtype_).to(at::kFloat);
}

QuantizedCode::QuantizedCode(int64_t block) : block_(block) {
  TORCH_CHECK(block > 0 && block % kScaleBytes == 0,
              "Expected blocks of numbers to be quantized to be a multiple of ",
              kScaleBytes,
              " long, but got ",
              block);
}

at::Tensor QuantizedCode::encode(const at::Tensor& rows) const {
  const auto blocks = rows.view({rows.size(0), -1, block_});
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

at::Tensor QuantizedCode::decode(const at::Tensor& code) const {
  const int64_t blocks = code.size(1) / (block_ + kScaleBytes);
  const auto numbers = code.narrow(1, 0, blocks * block_)
                           .view(at::kChar)
                           .to(at::kFloat)
                           .reshape({code.size(0), blocks, block_});
  const auto scales = code.narrow(1, blocks * block_, blocks * kScaleBytes)
                          .view(at::kFloat)
                          .unsqueeze(2);
  return (numbers * scales).view({code.size(0), blocks * block_});
}

CodedExchange::CodedExchange(c10::intrusive_ptr<c10d::Backend> group,
                             std::shared_ptr<const GradientCode> code)
    : group_(detail::required_group(std::move(group))), code_(std::move(code)) {
  TORCH_CHECK(code_ != nullptr,
              "Expected a code for the gradients, but got none");
}

double CodedExchange::scale(int ranks) const {
  detail::check_covers(group_->getSize(), ranks);
  return 1.0 / ranks;
}

int64_t CodedExchange::multiple_of(int /*ranks*/) const {
  return group_->getSize() * code_->block();
}

at::Tensor CodedExchange::parts(const at::Tensor& payload) const {
  const auto numbers =
      payload.is_complex() ? at::view_as_real(payload) : payload;
  return numbers.view({group_->getSize(), -1});
}

void CodedExchange::start(const GradientBucket& given) {
  buckets_.resize(given.count);
  auto& bucket = buckets_[given.index];
  if (given.payload.numel() == 0) {
    return;
  }
  bucket.sent = code_->encode(parts(given.payload).to(at::kFloat));
  bucket.received = at::empty_like(bucket.sent);
  std::vector<int64_t> equal_parts;
  bucket.work = group_->alltoall_base(
      bucket.received, bucket.sent, equal_parts, equal_parts);
}

void CodedExchange::finish(const GradientBucket& given) {
  const auto bucket = std::exchange(buckets_[given.index], {});
  if (!bucket.work) {
    return;
  }
  const auto name = given.text();
  detail::wait(bucket.work, *group_, "all-to-all of " + name);
  auto mine =
      code_->encode(code_->decode(bucket.received).sum(0, /*keepdim=*/true));
  detail::record_stream(bucket.received);
  // The all-to-all read `sent`, and this stream has waited for it.
  detail::record_stream(bucket.sent);
  auto all = at::empty({group_->getSize(), mine.size(1)}, mine.options());
  detail::wait(
      group_->_allgather_base(all, mine), *group_, "all-gather of " + name);
  const auto sums = code_->decode(all);
  const auto payload = parts(given.payload);
  TORCH_CHECK(sums.sizes().equals(payload.sizes()),
              "Expected a code that decodes rows of shape ",
              payload.sizes(),
              ", but got ",
              sums.sizes());
  payload.copy_(sums);
}

}  // namespace ddp
