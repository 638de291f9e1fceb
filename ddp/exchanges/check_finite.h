#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/forwarding_exchange.h"

namespace ddp {

/// Looks for NaN and inf in each bucket before another exchange sends it: after
/// it, every rank has them, and none knows whose they were. The pass in which a
/// rank finds some throws on every rank, naming the ranks and their parameters;
/// the training is to end, or to start again from a checkpoint.
///
/// For finding out, not for every day: costs a look at every gradient and an
/// all-reduce of one number a pass, for which a GPU's host waits. Not with a
/// `GradScaler`, whose inf are meant. Around a `CastExchange` it sees the
/// values before they are converted, so it does not find what overflows on the
/// wire.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().exchange(
///           std::make_shared<ddp::CheckFinite>(ddp::process_group())));
/// @endcode
class CheckFinite : public ForwardingExchange {
 public:
  /// Over an all-reduce.
  explicit CheckFinite(c10::intrusive_ptr<c10d::Backend> group);
  /// @param inner  what sends the buckets.
  /// @param group  its ranks.
  CheckFinite(std::shared_ptr<Exchange> inner,
              c10::intrusive_ptr<c10d::Backend> group);

  void start(const GradientBucket& bucket) override;
  /// @throws c10::Error on every rank when one has found something.
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;

 private:
  struct Found {
    std::vector<std::string> names;     // of the gradients that have elements
    at::Tensor largest;                 // absolute values, by gradient
    std::optional<c10::Stream> stream;  // that computes them
  };

  std::string findings() const;

  c10::intrusive_ptr<c10d::Backend> group_;
  std::vector<Found> found_;     // by bucket
  std::vector<at::Tensor> any_;  // one element: whether a rank has found some
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace ddp
