#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace fake_gpu {

/// Combines `count` elements of each rank, in rank order; half types are added
/// up in float and rounded once. `to` may be none of `from`.
void reduce(char* to,
            const std::vector<const char*>& from,
            size_t count,
            ncclDataType_t type,
            ncclRedOp_t reduction);

}  // namespace fake_gpu
