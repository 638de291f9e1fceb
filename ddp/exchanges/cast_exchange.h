#pragma once

#include <memory>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/exchanges/exchange.h"

namespace ddp {

/// Sends gradients in another dtype than their parameters have: converts each
/// bucket, passes it to an inner exchange and converts the result back. With
/// torch::kBFloat16 or torch::kHalf, float gradients need half the bytes, are
/// rounded once and are summed in that dtype. With torch::kFloat the gradients
/// of a bfloat16 network are summed in float. Corresponds to PyTorch's
/// bf16_compress_hook, fp16_compress_hook and their wrappers, and to the
/// reduce_dtype of its mixed precision.
///
/// The reducer multiplies the gradients by the inner exchange's `scale` when it
/// fills a bucket, so before the conversion: by 1 / ranks for a mean, by 1 for
/// a sum. In kHalf, values above 65504 become inf on all ranks: use a
/// `GradScaler`, or kBFloat16, which has the range of float. A bucket that is
/// sparse, complex or already of this dtype is passed on unchanged.
///
/// Costs memory for the converted buckets between `start` and `finish`, and one
/// all-reduce of a few elements per pass, in which the ranks compare the pass.
/// CPU ranks use Gloo, even if the inner exchange is a `SharedMemoryAllReduce`.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().exchange(
///           std::make_shared<ddp::CastExchange>(ddp::process_group(),
///                                               torch::kBFloat16)));
/// @endcode
class CastExchange : public Exchange {
 public:
  /// Converts buckets for an `AllReduce` over the group.
  /// @param group  the ranks.
  /// @throws c10::Error as the constructor below, or if `group` is null.
  CastExchange(c10::intrusive_ptr<c10d::Backend> group, c10::ScalarType dtype);
  /// @param inner  exchange of the converted buckets.
  /// @param dtype  torch::kBFloat16, kHalf, kFloat or kDouble; the same on all
  ///   ranks, which is not checked.
  /// @throws c10::Error for another dtype, if `inner` is null, or if it belongs
  ///   to a model or another exchange.
  CastExchange(std::shared_ptr<Exchange> inner, c10::ScalarType dtype);

  double scale(int ranks) const override { return inner_->scale(ranks); }
  std::string refuses_sparse() const override {
    return inner_->refuses_sparse();
  }
  /// The exchange of the converted buckets.
  const Exchange& inner() const { return *inner_; }
  void start(const GradientBucket& bucket) override;
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override { inner_->abandon(); }
  /// The state of the inner exchange.
  c10::IValue state_dict() const override { return inner_->state_dict(); }
  void check_state_dict(const c10::IValue& state) const override {
    inner_->check_state_dict(state);
  }
  void load_state_dict(const c10::IValue& state) override {
    inner_->load_state_dict(state);
  }

 private:
  detail::ExchangeClaim inner_;
  c10::ScalarType dtype_;
  std::vector<at::Tensor> wires_;  // by bucket; undefined if not converted
};

}  // namespace ddp
