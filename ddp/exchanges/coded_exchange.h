#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/exchange.h"

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

/// Averages gradients that are sent in an encoding of fewer bytes and summed in
/// float. Each rank sends to every other rank the encoding of one part of the
/// bucket (all-to-all), sums its own part, and sends the encoding of the sum to
/// all ranks (all-gather). A gradient is thus encoded twice, independent of the
/// number of ranks, whereas an all-reduce of narrow numbers (`CastExchange`)
/// rounds at each addition. All ranks decode the same bytes, so the results are
/// equal bit for bit.
///
/// A rank sends 2(p-1)/p times the encoding of its gradients; each bucket is
/// padded to a multiple of the group's size times block. With `NarrowCode` this
/// is half of the bytes of a float all-reduce, with `QuantizedCode` a quarter
/// plus the scales. The all-gathers, half of the traffic, run in `finish`, one
/// bucket after the other, and do not overlap with the backward pass.
///
/// With `QuantizedCode` the error of an element is at most about 1/254 of the
/// sum, over ranks, of the largest share (gradient / ranks) in its block, plus
/// 1/254 of the largest mean in its block.
///
/// Complex gradients are encoded as pairs of real numbers. With
/// `NarrowCode` and `QuantizedCode`, elements that are not finite on one rank
/// are not finite in the result on all ranks. The construction of a model with
/// sparse gradients throws c10::Error.
///
/// Example: 8 bits, then bfloat16.
/// @code
///   auto group = ddp::process_group();
///   auto bytes = std::make_shared<ddp::CodedExchange>(
///       group, std::make_shared<ddp::QuantizedCode>());
///   auto narrow = std::make_shared<ddp::CodedExchange>(
///       group, std::make_shared<ddp::NarrowCode>(torch::kBFloat16));
///   ddp::DistributedDataParallel model(
///       net, ddp::DistributedDataParallelOptions().exchange(bytes));
/// @endcode
class CodedExchange : public Exchange {
 public:
  /// @param group  the ranks.
  /// @throws c10::Error if `group` or `code` is null.
  CodedExchange(c10::intrusive_ptr<c10d::Backend> group,
                std::shared_ptr<const GradientCode> code);

  double scale(int ranks) const override;
  int64_t multiple_of(int ranks) const override;
  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override { buckets_.clear(); }

 private:
  struct Bucket {
    at::Tensor sent;      // one row for each rank
    at::Tensor received;  // one row from each rank
    c10::intrusive_ptr<c10d::Work> work;
  };

  /// Returns the numbers of the payload as a matrix; row r is the part of rank
  /// r.
  at::Tensor parts(const at::Tensor& payload) const;

  c10::intrusive_ptr<c10d::Backend> group_;
  std::shared_ptr<const GradientCode> code_;
  std::vector<Bucket> buckets_;
};

}  // namespace ddp
