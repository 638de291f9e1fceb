#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/exchange.h"

namespace ddp {

namespace detail {

/// Encodes each row by itself: each number as an integer from -127 to 127, then
/// one float scale for each block.
/// @param rows   float, with a multiple of `block` columns.
/// @returns a torch::kByte matrix with one row for each row.
at::Tensor quantize(const at::Tensor& rows, int64_t block);

/// Decodes some or all rows of a result of `quantize`, in float.
at::Tensor dequantize(const at::Tensor& code, int64_t block);

}  // namespace detail

/// Averages gradients that are sent as integers from -127 to 127, with one
/// float scale for each block of numbers, and summed in float. Each rank sends
/// to every other rank the encoding of one part of the bucket (all-to-all),
/// sums its own part, and sends the encoding of the sum to all ranks
/// (all-gather). A gradient is thus rounded twice, independent of the number of
/// ranks. All ranks decode the same bytes, so the results are equal bit for
/// bit.
///
/// A rank sends a quarter of the bytes of a float all-reduce, and the scales;
/// a copy of each bucket is padded to a multiple of the group's size times
/// block. The all-gathers, half of the traffic, run in `finish`, one bucket
/// after the other, and do not overlap with the backward pass.
///
/// Zero is exact. The error of another element is at most about 1/254 of the
/// sum, over ranks, of the largest share (gradient / ranks) in its block, plus
/// 1/254 of the largest mean in its block.
///
/// Complex gradients are encoded as pairs of real numbers. A block that
/// contains inf or NaN on one rank is NaN on all ranks. The construction of a
/// model with sparse gradients throws c10::Error.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().exchange(
///           std::make_shared<ddp::QuantizedExchange>(ddp::process_group())));
/// @endcode
class QuantizedExchange : public Exchange {
 public:
  /// @param group  the ranks.
  /// @param block  count of numbers that share a scale, a positive multiple of
  ///   4. A smaller block is more exact and needs more bytes.
  /// @throws c10::Error if `group` is null, or if `block` is no positive
  ///   multiple of 4.
  explicit QuantizedExchange(c10::intrusive_ptr<c10d::Backend> group,
                             int64_t block = 256);

  double scale(int ranks) const override;
  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override { buckets_.clear(); }

 private:
  struct Bucket {
    at::Tensor sent;      // one row for each rank
    at::Tensor received;  // one row from each rank
    c10::intrusive_ptr<c10d::Work> work;
  };

  c10::intrusive_ptr<c10d::Backend> group_;
  int64_t block_;
  std::vector<Bucket> buckets_;
};

}  // namespace ddp
