#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace dp::detail {

/// Counters behind `ReplicaTraffic`, for one replica. Autograd's threads count
/// the gradients, possibly after the wrapper has been destroyed.
struct TrafficCounter {
  std::atomic<int64_t> state{0};
  std::atomic<int64_t> inputs{0};
  std::atomic<int64_t> outputs{0};
  std::atomic<int64_t> gradients{0};
};
using TrafficCounters = std::shared_ptr<std::vector<TrafficCounter>>;

}  // namespace dp::detail
