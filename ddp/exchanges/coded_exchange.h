#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/exchange.h"
#include "ddp/exchanges/gradient_code.h"

namespace ddp {

/// The mean of gradients that travel in fewer bytes and are added up in float:
/// each rank sends every other one its code of a part of the bucket
/// (all-to-all), adds up the part that is its own, and sends the code of the
/// sum to all (all-gather). So a gradient is coded twice, however many ranks
/// there are; an all-reduce of narrow numbers (`CastExchange`) rounds at each
/// addition. All ranks decode the same bytes: results are equal bit for bit.
///
/// A rank sends 2(p-1)/p times the code of its gradients, padded to a multiple
/// of ranks and block in each bucket: half of what an all-reduce of float ones
/// sends with `NarrowCode`, a quarter and the scales with `QuantizedCode`. Half
/// of it, the all-gathers, is sent in `finish`, one bucket after the other, and
/// is not hidden behind the backward pass.
///
/// With `QuantizedCode` an element is wrong by at most 1/254 of the sum, over
/// ranks, of the largest share (gradient / ranks) in its block, and 1/254 of
/// the largest mean in its block.
///
/// Complex gradients are coded as pairs of real ones. What is not finite in a
/// gradient is not finite in the result, on all ranks.
///
/// Example, 8 bits, then bfloat16:
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
  /// @throws c10::Error when there is no code.
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
    at::Tensor sent;      // a row for each rank
    at::Tensor received;  // a row from each rank
    c10::intrusive_ptr<c10d::Work> work;
  };

  /// The payload's numbers, a row for the part of each rank.
  at::Tensor parts(const at::Tensor& payload) const;

  c10::intrusive_ptr<c10d::Backend> group_;
  std::shared_ptr<const GradientCode> code_;
  std::vector<Bucket> buckets_;
};

}  // namespace ddp
