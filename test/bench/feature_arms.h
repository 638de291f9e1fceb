#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "test/bench/arms.h"

namespace ddp::bench {

using Group = c10::intrusive_ptr<c10d::Backend>;
using Maker =
    std::function<std::unique_ptr<Arm>(const Workload&, const Group&)>;

/// Returns, by name, makers of arms that add one feature to "ours":
/// "autocast", "checkpointed" (checkpoint_activations of each layer),
/// "cast_exchange", "power_sgd", "find_unused" (find_unused_parameters),
/// "accumulate4" (NoSyncGuard in three of four steps), "average8" (a
/// ModelAverager of period 8 instead of the wrapper) and "zero" (a
/// ZeroRedundancyOptimizer). "batch_norm", "own_buffers" (without
/// broadcast_buffers) and "sync_batch_norm" add a norm after each layer.
std::map<std::string, Maker> feature_makers();

}  // namespace ddp::bench
