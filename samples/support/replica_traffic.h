#pragma once

#include <dp/data_parallel.h>

#include <vector>

namespace samples {

/// Returns the traffic between the first device and all others together;
/// `device` is the first device. Replica 0's own inputs and outputs, which stay
/// on the first device, are not included. Pure.
dp::ReplicaTraffic sum_of_others(
    const std::vector<dp::ReplicaTraffic>& traffic);

}  // namespace samples
