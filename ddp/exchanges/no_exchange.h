#pragma once

#include <string>

#include "ddp/exchanges/exchange.h"

namespace ddp {

/// Each rank keeps its own gradients, undivided: for training that brings the
/// ranks together elsewhere, and to see what communication costs. PyTorch's
/// noop_hook. The ranks still tell each other of a missing gradient, by an
/// all-reduce of a few elements a pass, so each pass waits for the slowest
/// rank. Under a `NoSyncGuard` it does not.
///
/// Parameters part from the first step on. With a `GradScaler` give it the
/// group (`GradScalerOptions::process_group`), so that all ranks leave out the
/// same steps.
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
  bool is_replica_consistent(int /*ranks*/) const override { return false; }
  std::string refuses_sparse() const override { return ""; }
  void start(const GradientBucket& /*bucket*/) override {}
  void finish(const GradientBucket& /*bucket*/) override {}
};

}  // namespace ddp
