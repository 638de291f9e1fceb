#pragma once

#include <cuda_runtime_api.h>

#include "test/fake_gpu/engine/stream.h"

namespace fake_gpu {

/// Of the calling thread, as cudaSetDevice left it.
int current_device();

/// The stream a handle names: null and the legacy handle are the default
/// stream of `device`.
Stream* stream_of(cudaStream_t handle, int device);
/// Of the current device.
Stream* stream_of(cudaStream_t handle);

}  // namespace fake_gpu
