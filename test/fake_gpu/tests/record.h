#pragma once

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

namespace fake_gpu::test {

/// Records the calls of `step` on a stream of its own. capture_begin() also
/// queues work of the random generator on that stream, which has to run before
/// a launch on another stream.
template <typename Step>
void record(at::cuda::CUDAGraph& graph, const Step& step) {
  c10::cuda::device_synchronize();
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  step();
  graph.capture_end();
  c10::cuda::device_synchronize();
}

}  // namespace fake_gpu::test
