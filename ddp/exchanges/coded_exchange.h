#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/exchange.h"
#include "ddp/exchanges/gradient_code.h"

namespace ddp {

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
  int min_group_size() const override { return group_->getSize(); }
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
