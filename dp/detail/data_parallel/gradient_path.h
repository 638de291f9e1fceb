#pragma once

#include <vector>

#include "dp/detail/data_parallel/replica.h"
#include "dp/detail/data_parallel/traffic_counters.h"

namespace dp::detail {

/// Makes the replicas' parameters the outcome of a differentiable copy of the
/// module's: a backward pass adds the replicas' gradients to that of the
/// module's own forward. Parameters that need no gradient get none.
///
/// Parameters go in buckets, so that the gradients of the last layers are added
/// up while those of the first are still computed. A replica on another device
/// sends the gradients of a bucket as one tensor, from that device's autograd
/// thread, so that replicas do not wait for each other; then all of them are
/// added up. With create_graph the same is done by differentiable operations,
/// so it can be differentiated again. A parameter that no replica used gets no
/// gradient, as in the module.
void connect_gradients(const StateLayout& layout,
                       const std::vector<Replica*>& replicas,
                       const TrafficCounters& traffic);

}  // namespace dp::detail
