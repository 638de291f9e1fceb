#pragma once

#include <cstdint>
#include <vector>

namespace ddp::detail {

/// Assigns parts of these sizes to owners: the largest part first, each part to
/// the owner with the smallest load (of several, the lowest). No owner
/// therefore gets more than its fair share and the largest part. Equals the
/// assignment of a group's parameters to ranks in PyTorch's
/// ZeroRedundancyOptimizer. Pure.
/// @param loads  load of each owner before; increased.
/// @returns the owner of each part.
///
/// Source: Graham's longest-processing-time rule, 1969.
std::vector<int> partition_whole(const std::vector<int64_t>& sizes,
                                 std::vector<int64_t>& loads);

}  // namespace ddp::detail
