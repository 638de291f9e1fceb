#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace fake_gpu {

/// A boxed kernel for an operator on CUDA tensors, whose real kernels have no
/// stand-in: queues LibTorch's CPU code as one operation of the current stream.
/// The results exist when the call returns, shaped as a run on zeros shapes
/// them; the values come when the stream gets there. An operator that returns a
/// bool to the host waits, as its CUDA code does.
///
/// Serves operators whose results' shapes depend on the arguments' shapes
/// alone.
void deferred(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace fake_gpu
