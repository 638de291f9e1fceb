#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace fake_gpu {

/// A boxed kernel for an operator on CUDA tensors, in place of real kernels
/// that are not supported. Queues LibTorch's CPU code as one operation of the
/// current stream. The results exist when the call returns; their shapes come
/// from a run on zeros, and their values are computed when the stream executes
/// the operation. An operator that returns a bool to the host blocks, as its
/// CUDA code does.
///
/// For operators that give results of the same shapes for arguments of the same
/// shapes.
void deferred(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace fake_gpu
