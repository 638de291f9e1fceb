#pragma once

namespace fake_gpu {

/// Fills blocks that LibTorch's allocator takes back with NaN, on the block's
/// own stream, from the first call on. If another stream still reads a block
/// without record_stream, it reads NaN in some orders. Further calls have no
/// effect. The caller must not hold a lock of the allocator.
void fill_freed_memory();

}  // namespace fake_gpu
