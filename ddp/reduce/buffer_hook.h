#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp {

/// Buffers by the names that `named_buffers()` of the wrapped module has.
using NamedBuffers = torch::OrderedDict<std::string, at::Tensor>;

/// What the ranks do with their buffers instead of taking rank 0's: see
/// `DistributedDataParallelOptions::buffer_hook`. Changes the buffers in place;
/// that is no change for autograd, so graphs that have them stay valid.
///
/// Called on every rank at the end of each reduced backward pass, where the
/// gradients have been exchanged, so it may communicate over `group`, the ranks
/// of the model; work that it starts it is to wait for. On the thread of
/// `backward()`, without gradient recording. An exception is that of this
/// rank's `backward()`; the other ranks are told by their next pass.
///
/// It is not given what is ignored, and not called for a module without buffers
/// or a world of one.
using BufferHook =
    std::function<void(c10d::Backend& group, const NamedBuffers& buffers)>;

/// A `BufferHook`: the mean over ranks of what is of floating or complex
/// numbers, as the statistics of a batch norm, and rank 0's of the rest, as the
/// number of batches. One message for all of a dtype and device.
///
/// The mean of the ranks' variances is not the variance over all batches: for
/// that there is `SyncBatchNorm`.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().buffer_hook(
///           ddp::average_buffers));
/// @endcode
void average_buffers(c10d::Backend& group, const NamedBuffers& buffers);

}  // namespace ddp
