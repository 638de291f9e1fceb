#pragma once

#include <string>

#include "ddp/exchanges/exchange.h"

namespace ddp {

/// Leaves each rank its own gradients, undivided also in a `Join`. A parameter
/// without a gradient is an error, as with other exchanges. Use it for a
/// training that synchronises the ranks in another way, and to measure the cost
/// of communication. Corresponds to PyTorch's noop_hook. The ranks still
/// compare their passes with an all-reduce of a few elements per pass, so each
/// pass waits for the slowest rank, unless it is under a `NoSyncGuard`. Buffers
/// are still copied from rank 0 in each reduced pass, unless
/// `broadcast_buffers(false)`.
///
/// The parameters of the ranks differ from the first step on. A `GradScaler`
/// needs the group (`GradScalerOptions::process_group`), so that all ranks skip
/// the same steps.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().exchange(
///           std::make_shared<ddp::NoExchange>()));
/// @endcode
class NoExchange : public Exchange {
 public:
  double scale(int /*ranks*/) const override { return 1; }
  std::string refuses_sparse() const override { return ""; }
  void start(const GradientBucket& /*bucket*/) override {}
  void finish(const GradientBucket& /*bucket*/) override {}
};

}  // namespace ddp
