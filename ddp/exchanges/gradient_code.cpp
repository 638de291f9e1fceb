#include "ddp/exchanges/gradient_code.h"

#include <limits>

#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

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

}  // namespace ddp
