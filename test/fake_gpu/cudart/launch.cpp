// Functions with which compiled CUDA code registers and launches its kernels.
// nvcc generates calls of the functions with leading underscores, which
// crt/host_runtime.h declares.
#include <cuda_runtime_api.h>

#include <vector>

#include "test/fake_gpu/counters.h"
#include "test/fake_gpu/cudart/device.h"
#include "test/fake_gpu/cudart/error.h"
#include "test/fake_gpu/engine/captures.h"
#include "test/fake_gpu/engine/engine.h"
#include "test/fake_gpu/kernels/decode.h"
#include "test/fake_gpu/kernels/registry.h"

namespace fake_gpu {
namespace {

/// Launch configuration of <<<grid, block, memory, stream>>>.
struct Configuration {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

thread_local std::vector<Configuration> configurations;

cudaError_t launch(const void* kernel,
                   dim3 grid,
                   void** arguments,
                   cudaStream_t stream) {
  const auto error = report(check_enqueue(stream_of(stream)));
  if (error == cudaSuccess) {
    count(&Counts::kernels);
    const std::string& name = kernel_name(kernel);
    enqueue(stream_of(stream), name, decode(name, arguments, grid.x));
  }
  return error;
}

}  // namespace
}  // namespace fake_gpu

using fake_gpu::configurations;

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void**,
                            const char* host,
                            char*,
                            const char* name,
                            int,
                            uint3*,
                            uint3*,
                            dim3*,
                            dim3*,
                            int*) {
  fake_gpu::register_kernel(host, name);
}

void __cudaRegisterVar(
    void**, char*, char*, const char*, int, size_t, int, int) {}

unsigned __cudaPushCallConfiguration(dim3 grid,
                                     dim3 block,
                                     size_t shared_bytes,
                                     void* stream) {
  configurations.push_back(
      {grid, block, shared_bytes, static_cast<cudaStream_t>(stream)});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid,
                                       dim3* block,
                                       size_t* shared_bytes,
                                       void* stream) {
  const auto last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel,
                               dim3 grid,
                               dim3,
                               void** arguments,
                               size_t,
                               cudaStream_t stream) {
  return fake_gpu::launch(kernel, grid, arguments, stream);
}

cudaError_t cudaLaunchKernel(const void* kernel,
                             dim3 grid,
                             dim3,
                             void** arguments,
                             size_t,
                             cudaStream_t stream) {
  return fake_gpu::launch(kernel, grid, arguments, stream);
}

}  // extern "C"
