#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace ddp {

/// How numbers are written in fewer bytes: what `CodedExchange` sends. Two pure
/// functions, the same on all ranks.
///
/// Example, the sign alone, a byte each:
/// @code
///   class SignCode : public ddp::GradientCode {
///    public:
///     int64_t block() const override { return 1; }
///     at::Tensor encode(const at::Tensor& rows) const override {
///       return rows.sign().to(at::kChar).view(at::kByte);
///     }
///     at::Tensor decode(const at::Tensor& code) const override {
///       return code.view(at::kChar).to(at::kFloat);
///     }
///   };
///   auto exchange = std::make_shared<ddp::CodedExchange>(
///       ddp::process_group(), std::make_shared<SignCode>());
/// @endcode
class GradientCode {
 public:
  virtual ~GradientCode() = default;

  /// Rows that are coded have a multiple of this many numbers.
  virtual int64_t block() const = 0;

  /// @param rows  float, two dimensions.
  /// @returns bytes (torch::kByte): for each row its code, of one length that
  ///   the number of columns decides.
  virtual at::Tensor encode(const at::Tensor& rows) const = 0;

  /// The rows, in float, of what `encode` has made, or of some of its rows.
  virtual at::Tensor decode(const at::Tensor& code) const = 0;
};

/// Each number rounded to another dtype: two bytes.
///
/// Example:
/// @code
///   auto exchange = std::make_shared<ddp::CodedExchange>(
///       ddp::process_group(),
///       std::make_shared<ddp::NarrowCode>(torch::kBFloat16));
/// @endcode
class NarrowCode : public GradientCode {
 public:
  /// @param dtype  torch::kBFloat16 or torch::kHalf.
  /// @throws c10::Error for another one.
  explicit NarrowCode(at::ScalarType dtype);

  int64_t block() const override { return 1; }
  at::Tensor encode(const at::Tensor& rows) const override;
  at::Tensor decode(const at::Tensor& code) const override;

 private:
  at::ScalarType dtype_;
};

/// Each number as an integer from -127 to 127, and for each block the scale
/// that they are multiplied by: one byte, and four for a block. A number is
/// wrong by at most 1/254 of the largest one of its block, and zero is exact. A
/// block that holds inf or NaN becomes NaN.
///
/// Example:
/// @code
///   auto exchange = std::make_shared<ddp::CodedExchange>(
///       ddp::process_group(), std::make_shared<ddp::QuantizedCode>(128));
/// @endcode
class QuantizedCode : public GradientCode {
 public:
  /// @param block  numbers that share a scale, a multiple of 4: the fewer, the
  ///   more exact and the more bytes.
  /// @throws c10::Error for another one.
  explicit QuantizedCode(int64_t block = 256);

  int64_t block() const override { return block_; }
  at::Tensor encode(const at::Tensor& rows) const override;
  at::Tensor decode(const at::Tensor& code) const override;

 private:
  int64_t block_;
};

}  // namespace ddp
