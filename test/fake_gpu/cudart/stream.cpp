#include "test/fake_gpu/counters.h"
#include "test/fake_gpu/cudart/device.h"
#include "test/fake_gpu/cudart/error.h"
#include "test/fake_gpu/engine/captures.h"
#include "test/fake_gpu/engine/engine.h"

using fake_gpu::check_host_wait;
using fake_gpu::count;
using fake_gpu::Counts;
using fake_gpu::report;
using fake_gpu::Stream;
using fake_gpu::stream_of;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream,
                                         unsigned flags,
                                         int) {
  const bool blocking = (flags & cudaStreamNonBlocking) == 0;
  *stream = reinterpret_cast<cudaStream_t>(fake_gpu::create_stream(
      fake_gpu::current_device(),
      blocking ? Stream::Kind::blocking : Stream::Kind::non_blocking));
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

// Queued operations of the stream still run, as in the CUDA runtime.
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto error = report(check_host_wait(stream_of(stream)));
  if (error == cudaSuccess) {
    count(&Counts::stream_synchronizes);
    fake_gpu::wait_for(fake_gpu::last_of(stream_of(stream)));
  }
  return error;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const auto error = report(check_host_wait(stream_of(stream)));
  if (error != cudaSuccess) {
    return error;
  }
  return fake_gpu::query(fake_gpu::last_of(stream_of(stream)))
             ? cudaSuccess
             : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream,
                               cudaHostFn_t function,
                               void* data) {
  const auto error = report(fake_gpu::check_enqueue(stream_of(stream)));
  if (error == cudaSuccess) {
    fake_gpu::enqueue(stream_of(stream), "host function", [function, data] {
      function(data);
      return true;
    });
  }
  return error;
}

}  // extern "C"
