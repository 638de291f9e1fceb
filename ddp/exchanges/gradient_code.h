#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace ddp {

/// Encoding of numbers in fewer bytes, for `CodedExchange`. `encode` and
/// `decode` must be pure functions and the same on all ranks.
///
/// Example: only the sign, one byte for each number.
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

  /// Returns the block length: rows to encode have a multiple of this many
  /// numbers. Must be positive.
  virtual int64_t block() const = 0;

  /// Encodes each row by itself.
  /// @param rows  float, two dimensions.
  /// @returns a torch::kByte matrix with one row for each row; its width
  ///   depends only on the number of columns of `rows`.
  virtual at::Tensor encode(const at::Tensor& rows) const = 0;

  /// Decodes some or all rows of a result of `encode`.
  /// @returns the rows in float.
  virtual at::Tensor decode(const at::Tensor& code) const = 0;
};

/// Rounds each number to another dtype of two bytes.
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
  /// @throws c10::Error for another dtype.
  explicit NarrowCode(at::ScalarType dtype);

  int64_t block() const override { return 1; }
  at::Tensor encode(const at::Tensor& rows) const override;
  at::Tensor decode(const at::Tensor& code) const override;

 private:
  at::ScalarType dtype_;
};

/// Stores each number as an integer from -127 to 127, and one float scale for
/// each block: one byte for a number and four bytes for a block. The error of a
/// number is at most about 1/254 of the largest absolute value in its block,
/// and zero is exact. A block that contains inf or NaN becomes NaN.
///
/// Example:
/// @code
///   auto exchange = std::make_shared<ddp::CodedExchange>(
///       ddp::process_group(), std::make_shared<ddp::QuantizedCode>(128));
/// @endcode
class QuantizedCode : public GradientCode {
 public:
  /// @param block  count of numbers that share a scale, a positive multiple of
  ///   4. A smaller block is more exact and needs more bytes.
  /// @throws c10::Error for another block length.
  explicit QuantizedCode(int64_t block = 256);

  int64_t block() const override { return block_; }
  at::Tensor encode(const at::Tensor& rows) const override;
  at::Tensor decode(const at::Tensor& code) const override;

 private:
  int64_t block_;
};

}  // namespace ddp
