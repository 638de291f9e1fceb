#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace fake_gpu {

/// Combines `count` elements of each rank, in rank order. Half types are summed
/// in float and rounded once. `to` must not be one of `from`.
void reduce(char* to,
            const std::vector<const char*>& from,
            size_t count,
            ncclDataType_t type,
            ncclRedOp_t reduction);

}  // namespace fake_gpu
