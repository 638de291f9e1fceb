#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp {

/// Buffers by their names in `named_buffers()` of the wrapped module.
using NamedBuffers = torch::OrderedDict<std::string, at::Tensor>;

/// Function that makes the buffers of all ranks equal in each pass, instead of
/// a copy from rank 0; see `DistributedDataParallelOptions::buffer_hook`. The
/// wrapper's constructor still copies the buffers of rank 0. The function
/// changes the buffers in place. Autograd does not see the change, so graphs
/// that use the buffers stay valid.
///
/// The hook is called on every rank at the end of each reduced backward pass,
/// after the gradients have been exchanged, on the thread that ends the pass
/// (with GPUs mostly one of autograd's), without gradient recording. The hook
/// may communicate over `group`, the ranks of the model, and has to wait for
/// work that it starts.
///
/// An exception of the hook is an exception of the pass: this rank's
/// `backward()` throws it, and the other ranks get its text; see `Reducer`.
///
/// The wrapper's constructor throws c10::Error for a hook without
/// broadcast_buffers. A `Join` throws c10::Error for a model with a hook,
/// unless its throw_on_early_termination is set.
///
/// `buffers` does not contain ignored buffers. The function is not called for a
/// module without buffers, or if the model has only one rank and no exchange of
/// the program.
using BufferHook =
    std::function<void(c10d::Backend& group, const NamedBuffers& buffers)>;

/// A `BufferHook`: averages buffers of floating or complex numbers (statistics
/// of a batch norm) over ranks, and copies the others (number of batches) from
/// rank 0. Sends one message per dtype and device. Collective. Autograd does
/// not see the change in a hook. If a program calls this function with a
/// module's own buffers, autograd sees the change of the averaged ones. Throws
/// c10::Error if a rank has left or the group's time-out is over.
///
/// The mean of the ranks' variances is not the variance over all batches;
/// `SyncBatchNorm` computes that.
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
