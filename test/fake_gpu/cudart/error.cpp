#include "test/fake_gpu/cudart/error.h"

#include <utility>

namespace fake_gpu {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

struct Text {
  const char* name;
  const char* description;
};

Text text_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return {"cudaSuccess", "no error"};
    case cudaErrorMemoryAllocation:
      return {"cudaErrorMemoryAllocation", "out of memory"};
    case cudaErrorInvalidValue:
      return {"cudaErrorInvalidValue", "invalid argument"};
    case cudaErrorInvalidDevice:
      return {"cudaErrorInvalidDevice", "invalid device ordinal"};
    case cudaErrorNoDevice:
      return {"cudaErrorNoDevice", "no CUDA-capable device is detected"};
    case cudaErrorNotReady:
      return {"cudaErrorNotReady", "device not ready"};
    case cudaErrorStreamCaptureUnsupported:
      return {"cudaErrorStreamCaptureUnsupported",
              "operation not permitted when stream is capturing"};
    case cudaErrorStreamCaptureInvalidated:
      return {"cudaErrorStreamCaptureInvalidated",
              "operation failed due to a previous error during capture"};
    case cudaErrorStreamCaptureMerge:
      return {"cudaErrorStreamCaptureMerge",
              "operation would result in a merge of separate capture "
              "sequences"};
    case cudaErrorStreamCaptureUnmatched:
      return {"cudaErrorStreamCaptureUnmatched",
              "capture was not ended in the same stream as it began"};
    case cudaErrorStreamCaptureUnjoined:
      return {"cudaErrorStreamCaptureUnjoined",
              "capturing stream has unjoined work"};
    case cudaErrorStreamCaptureIsolation:
      return {"cudaErrorStreamCaptureIsolation",
              "dependency created on uncaptured work in another stream"};
    case cudaErrorStreamCaptureImplicit:
      return {"cudaErrorStreamCaptureImplicit",
              "operation would make the legacy stream depend on a capturing "
              "blocking stream"};
    case cudaErrorCapturedEvent:
      return {"cudaErrorCapturedEvent",
              "operation not permitted on an event last recorded in a "
              "capturing stream"};
    case cudaErrorStreamCaptureWrongThread:
      return {"cudaErrorStreamCaptureWrongThread",
              "attempt to terminate a thread-local capture sequence from "
              "another thread"};
    default:
      return {"cudaErrorUnknown", "an error the stand-in has no name for"};
  }
}

}  // namespace

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) {
    last_error = error;
  }
  return error;
}

}  // namespace fake_gpu

extern "C" {

cudaError_t cudaGetLastError() {
  return std::exchange(fake_gpu::last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  return fake_gpu::last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  return fake_gpu::text_of(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
  return fake_gpu::text_of(error).description;
}

}  // extern "C"
