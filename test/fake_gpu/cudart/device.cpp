#include "test/fake_gpu/cudart/device.h"

#include <algorithm>
#include <cstdio>

#include "test/fake_gpu/counters.h"
#include "test/fake_gpu/cudart/error.h"
#include "test/fake_gpu/cudart/operators_library.h"
#include "test/fake_gpu/engine/captures.h"
#include "test/fake_gpu/engine/engine.h"
#include "test/fake_gpu/engine/memory.h"
#include "test/fake_gpu/settings.h"

namespace fake_gpu {
namespace {

thread_local int device_of_thread = 0;

bool exists(int device) {
  return device >= 0 && device < settings().devices;
}

/// Properties like an H100's: LibTorch selects launch parameters
/// and algorithms by them.
cudaDeviceProp properties_of(int device) {
  cudaDeviceProp p{};
  std::snprintf(p.name, sizeof p.name, "stand-in for a GPU");
  p.uuid.bytes[0] = static_cast<char>(device + 1);
  p.totalGlobalMem = settings().memory_bytes;
  p.major = 9;
  p.warpSize = 32;
  p.multiProcessorCount = 4;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.sharedMemPerBlock = 49152;
  p.sharedMemPerBlockOptin = 232448;
  p.sharedMemPerMultiprocessor = 233472;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.totalConstMem = 65536;
  p.l2CacheSize = 50 << 20;
  p.textureAlignment = 512;
  p.memoryBusWidth = 5120;
  p.concurrentKernels = 1;
  p.asyncEngineCount = 3;
  p.unifiedAddressing = 1;
  p.canMapHostMemory = 1;
  p.streamPrioritiesSupported = 1;
  p.pciBusID = device + 1;
  return p;
}

}  // namespace

int current_device() {
  return device_of_thread;
}

Stream* stream_of(cudaStream_t handle, int device) {
  if (handle == nullptr || handle == cudaStreamLegacy ||
      handle == cudaStreamPerThread) {
    return default_stream(device);
  }
  return reinterpret_cast<Stream*>(handle);
}

Stream* stream_of(cudaStream_t handle) {
  return stream_of(handle, current_device());
}

}  // namespace fake_gpu

using fake_gpu::count;
using fake_gpu::Counts;
using fake_gpu::report;
using fake_gpu::settings;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  fake_gpu::load_operators();
  *count = settings().devices;
  return *count > 0 ? cudaSuccess : report(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = fake_gpu::current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!fake_gpu::exists(device)) {
    return report(cudaErrorInvalidDevice);
  }
  fake_gpu::device_of_thread = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!fake_gpu::exists(device)) {
    return report(cudaErrorInvalidDevice);
  }
  *properties = fake_gpu::properties_of(device);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, length, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

// No device can access a peer's memory, as is usual between cards of one host.
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) {
    *least = 0;
  }
  if (greatest != nullptr) {
    *greatest = -5;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  const int device = fake_gpu::current_device();
  const auto error = report(fake_gpu::check_host_wait(device));
  if (error == cudaSuccess) {
    count(&Counts::device_synchronizes);
    fake_gpu::wait_for_device(device);
  }
  return error;
}

}  // extern "C"
