#pragma once

#include <memory>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/exchanges/forwarding_exchange.h"

namespace ddp {

/// Gradients that travel in another dtype than their parameters have: each
/// bucket is converted, given to another exchange, and converted back. With
/// torch::kBFloat16 or torch::kHalf float gradients send half the bytes, and
/// are rounded once before they are added up in that dtype; with torch::kFloat
/// those of a bfloat16 network are added up in float. What PyTorch calls
/// bf16_compress_hook, fp16_compress_hook, their wrappers, and the reduce_dtype
/// of its mixed precision.
///
/// Gradients are divided by the number of ranks before they are converted. In
/// kHalf what is then above 65504 becomes inf, on all ranks: leave that to a
/// `GradScaler`, or take kBFloat16, which has float's range. A bucket that is
/// sparse, complex or of the dtype already goes to the other exchange as it is.
///
/// Costs memory for the converted buckets, from `start` to `finish`, and an
/// all-reduce of a few elements a pass for what rides with the gradients else.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().exchange(
///           std::make_shared<ddp::CastExchange>(ddp::process_group(),
///                                               torch::kBFloat16)));
/// @endcode
class CastExchange : public ForwardingExchange {
 public:
  /// By an all-reduce over the group.
  CastExchange(c10::intrusive_ptr<c10d::Backend> group, c10::ScalarType dtype);
  /// @param inner  what the converted buckets are given to.
  /// @param dtype  torch::kBFloat16, kHalf, kFloat or kDouble.
  /// @throws c10::Error for another dtype.
  CastExchange(std::shared_ptr<Exchange> inner, c10::ScalarType dtype);

  bool sums_every_element() const override { return false; }
  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;

 private:
  c10::ScalarType dtype_;
  std::vector<at::Tensor> wires_;  // by bucket, where it is converted
};

}  // namespace ddp
