#pragma once

#include <dp/traffic.h>

#include <string>
#include <vector>

namespace samples {

/// Pure: what went between the first device and all others together; its
/// `device` is the first one. Replica 0's own inputs and outputs, which stay
/// on that device, are not in it.
dp::ReplicaTraffic sum_of_others(
    const std::vector<dp::ReplicaTraffic>& traffic);

/// Pure: a table in bytes, one line a replica; nothing without replicas.
std::string to_table(const std::vector<dp::ReplicaTraffic>& traffic);

}  // namespace samples
