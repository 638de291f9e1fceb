#pragma once

namespace fake_gpu {

/// From now on blocks that LibTorch's allocator takes back are filled with NaN
/// on their own stream, so that another stream that still reads one without
/// record_stream reads NaN in some order. The first call counts. The caller
/// holds no lock of the allocator.
void fill_freed_memory();

}  // namespace fake_gpu
