#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/exchanges/forwarding_exchange.h"

namespace ddp {

/// Options of `DesyncGuard`.
struct DesyncGuardOptions {
  /// Passes from one comparison to the next. The first one is compared.
  TORCH_ARG(int64_t, every) = 100;
  /// Whether the values of the parameters are compared, too: all ranks are to
  /// have the same, bit for bit, before a step.
  TORCH_ARG(bool, values) = true;
  /// A group of the same ranks for the comparison alone (`ddp::new_group`).
  /// With one the number of collectives that each rank has started in the
  /// model's group is compared, too, so that one too many is found before it
  /// pairs with another.
  TORCH_ARG(c10::intrusive_ptr<c10d::Backend>, channel) = nullptr;
};

/// Compares, every so many passes, what the ranks are about to combine: the
/// plan of the buckets, name, shape, strides and dtype of each parameter, its
/// values, the collectives so far. Ranks that have parted get an error before
/// their data mix, each the same one, which names the rank that differs from
/// most and the parameter.
///
/// For finding out: a comparison is an all-gather of two numbers a bucket, and
/// a pass over the parameters for their values; the ranks wait for each other.
/// Passes between cost nothing. Values are compared by the sum of their bits.
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
  /// Over an all-reduce.
  explicit DesyncGuard(c10::intrusive_ptr<c10d::Backend> group,
                       const DesyncGuardOptions& options = {});
  /// @param inner  what sends the buckets.
  /// @param group  its ranks.
  /// @throws c10::Error when `every` is not positive.
  DesyncGuard(std::shared_ptr<Exchange> inner,
              c10::intrusive_ptr<c10d::Backend> group,
              const DesyncGuardOptions& options = {});

  /// @throws c10::Error on every rank when the ranks have parted.
  void start(const GradientBucket& bucket) override;

 private:
  void compare(const GradientBucket& bucket) const;

  c10::intrusive_ptr<c10d::Backend> group_;
  DesyncGuardOptions options_;
  int64_t passes_ = 0;
};

}  // namespace ddp
