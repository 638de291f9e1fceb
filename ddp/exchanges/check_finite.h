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

/// Checks each bucket for NaN and inf before an inner exchange sends it; after
/// the exchange all ranks have the values and the origin is unknown. If a rank
/// finds any, the pass throws on every rank and names the ranks and up to
/// twelve parameters of each. Each `.grad` may then hold NaN or inf: end the
/// training, or restart it from a checkpoint. Sparse gradients are checked,
/// too.
///
/// A diagnostic tool: it reads every gradient once more and adds two small
/// all-reduces to each pass: one of the number of bad gradients, for which the
/// host waits on a GPU, and one of the ranks' state of the pass, which an
/// `AllReduce` alone sends with its last bucket. Do not combine it with a
/// `GradScaler`, which produces inf on purpose. Around a `CastExchange`
/// it sees the values before their conversion, so it does not find an overflow
/// in the narrow dtype.
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
  /// Checks the gradients of an `AllReduce` over the group.
  /// @throws c10::Error if `group` is null.
  explicit CheckFinite(c10::intrusive_ptr<c10d::Backend> group);
  /// @param inner  exchange of the buckets.
  /// @param group  its ranks.
  /// @throws c10::Error if `inner` or `group` is null, or if a model or another
  ///   exchange has `inner`.
  CheckFinite(std::shared_ptr<Exchange> inner,
              c10::intrusive_ptr<c10d::Backend> group);

  void start(const GradientBucket& bucket) override;
  /// @throws c10::Error on every rank if any rank has found NaN or inf.
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;

 private:
  struct Found {
    std::vector<std::string> names;  // of gradients with at least one element
    at::Tensor largest;              // absolute value of each gradient
    std::optional<c10::Stream> stream;  // computes `largest`
  };

  std::string findings() const;

  c10::intrusive_ptr<c10d::Backend> group_;
  std::vector<Found> found_;     // by bucket
  std::vector<at::Tensor> any_;  // one element: number of bad gradients
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace ddp
