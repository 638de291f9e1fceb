#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace dp::detail {

/// What `ReplicaTraffic` tells, by replica. Gradients are counted by autograd's
/// threads, possibly when the wrapper is gone.
struct TrafficCounter {
  std::atomic<int64_t> state{0};
  std::atomic<int64_t> inputs{0};
  std::atomic<int64_t> outputs{0};
  std::atomic<int64_t> gradients{0};
};
using TrafficCounters = std::shared_ptr<std::vector<TrafficCounter>>;

}  // namespace dp::detail
