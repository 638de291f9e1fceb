#pragma once

#include <cuda_runtime_api.h>

namespace fake_gpu {

/// Records an error of this thread for cudaGetLastError and returns it. Returns
/// cudaSuccess unchanged.
cudaError_t report(cudaError_t error);

}  // namespace fake_gpu
