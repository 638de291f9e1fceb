#pragma once

#include <cuda_runtime_api.h>

#include "test/fake_gpu/engine/stream.h"

namespace fake_gpu {

/// Returns the device of the calling thread, as set by cudaSetDevice.
int current_device();

/// Returns the stream of a handle. Null and the legacy handle are the default
/// stream of `device`.
Stream* stream_of(cudaStream_t handle, int device);
/// Same as above, for the current device.
Stream* stream_of(cudaStream_t handle);

}  // namespace fake_gpu
