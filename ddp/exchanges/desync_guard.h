#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/exchanges/forwarding_exchange.h"

namespace ddp {

/// Options of `DesyncGuard`.
struct DesyncGuardOptions {
  /// The ranks compare in each pass (1), or in passes 1, 101, 201 and so on
  /// (100). Must be positive.
  TORCH_ARG(int64_t, every) = 100;
  /// Whether the values of the parameters are compared too: before a step they
  /// must be equal bit for bit on all ranks.
  TORCH_ARG(bool, values) = true;
};

/// Compares, every few passes, the data that the ranks are about to combine:
/// the plan of the buckets; name, shape, strides, dtype and requires_grad of
/// each parameter; its values. If ranks differ, all ranks get the same error
/// before any of the data mix. The error lists the first difference by ranks:
/// the properties of a parameter or of a bucket.
///
/// A diagnostic tool: a comparison costs one all-gather of a digest and one
/// pass over the parameters for their values, the exchange of the pass begins
/// after it, at the end of the backward pass, and the host waits for the GPU.
/// Each pass between comparisons
/// costs one small all-reduce, of the ranks' state of the pass, which an
/// `AllReduce` alone sends with its last bucket. On the CPU ranks of one host
/// give it the default exchange, a `SharedMemoryAllReduce`, as `inner`. Values
/// are compared by the sum of their bits. The options must be equal on all
/// ranks, which is not checked.
///
/// Example:
/// @code
///   auto guard = std::make_shared<ddp::DesyncGuard>(
///       ddp::process_group(), ddp::DesyncGuardOptions().every(50));
///   ddp::DistributedDataParallel model(
///       net, ddp::DistributedDataParallelOptions().exchange(guard));
/// @endcode
class DesyncGuard : public ForwardingExchange {
 public:
  /// Guards an `AllReduce` over the group.
  /// @throws c10::Error if `every` is not positive or `group` is null.
  explicit DesyncGuard(c10::intrusive_ptr<c10d::Backend> group,
                       const DesyncGuardOptions& options = {});
  /// @param inner  exchange of the buckets.
  /// @param group  its ranks.
  /// @throws c10::Error if `every` is not positive, if `inner` or `group` is
  ///   null, or if a model or another exchange has `inner`.
  DesyncGuard(std::shared_ptr<Exchange> inner,
              c10::intrusive_ptr<c10d::Backend> group,
              const DesyncGuardOptions& options = {});

  void start(const GradientBucket& bucket) override;
  /// @throws c10::Error on every rank if the ranks differ.
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override;

 private:
  void compare_and_start();

  c10::intrusive_ptr<c10d::Backend> group_;
  DesyncGuardOptions options_;
  int64_t passes_ = 0;
  std::vector<GradientBucket> held_;  // in a pass that is compared
  std::vector<c10::Stream> streams_;  // that have filled them
};

}  // namespace ddp
