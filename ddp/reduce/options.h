#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/exchanges/exchange.h"
#include "ddp/reduce/buffer_hook.h"

namespace ddp {

/// Dtypes for `DistributedDataParallelOptions::mixed_precision`: of gradients
/// in transit and of buffers. Each is torch::kBFloat16, kHalf, kFloat or
/// kDouble (another dtype throws c10::Error when a module is wrapped), or
/// std::nullopt for no conversion. Integers, bools and complex numbers are
/// never converted, and neither are ignored tensors
/// (`params_and_buffers_to_ignore`).
///
/// The forward computes in the dtypes of the parameters and inputs. For a
/// forward in a narrow dtype use `AutocastGuard`.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().mixed_precision(
///           ddp::MixedPrecision().reduce_dtype(torch::kBFloat16)));
///   const ddp::AutocastGuard autocast(
///       device.type(), ddp::AutocastOptions().dtype(torch::kBFloat16));
///   auto loss = torch::nll_loss(model(data), target);
/// @endcode
struct MixedPrecision {
  /// Dtype in which gradients are sent and summed (`CastExchange`). A
  /// reduce_dtype beside an `exchange` of your own throws c10::Error when the
  /// module is wrapped: put a `CastExchange` around the exchange instead.
  TORCH_ARG(std::optional<c10::ScalarType>, reduce_dtype) = std::nullopt;
  /// Dtype of buffers, which are converted permanently when the module is
  /// wrapped. The operators of the forward must accept it: a batch norm with
  /// weights needs its buffers in the dtype of the weights.
  TORCH_ARG(std::optional<c10::ScalarType>, buffer_dtype) = std::nullopt;
};

/// Options of `DistributedDataParallel`; the defaults are PyTorch's, except for
/// bucket_cap_mb with Gloo. All ranks need equal options, and an exchange of
/// the same type. Exceptions are gradient_as_bucket_view, which each rank has
/// for itself, and the sizes of buckets: rank 0's are used. Different options
/// are an error when a module is wrapped; of a buffer_hook the ranks compare
/// only whether it is set, of an exchange only the class.
///
/// @throws c10::Error from the wrapper's constructor if
///   params_and_buffers_to_ignore has an unknown name, for a buffer_hook
///   without broadcast_buffers, or for an invalid `mixed_precision`; with
///   several ranks or an `exchange` also if a size of buckets is not positive,
///   if both find_unused_parameters and static_graph are true, or if another
///   model holds the `exchange`.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions()
///           .bucket_cap_mb(8)
///           .gradient_as_bucket_view(true));
/// @endcode
struct DistributedDataParallelOptions {
  /// The ranks that train together. Null: all ranks (`ddp::process_group()`),
  /// or this rank alone without `ddp::init_process_group` (an error if
  /// WORLD_SIZE is above 1). Any c10d backend; for a c10d::ProcessGroup `pg`
  /// pass `pg->getBackend(device.type())`. A backend that comes neither from
  /// `ddp::init_process_group` nor from `ddp::new_group` does not learn of
  /// ranks that leave. With Gloo the end of a peer's process is an error at
  /// once, and other failures end by the group's own time-out; with NCCL,
  /// LibTorch's watchdog may end this process for them
  /// (TORCH_NCCL_ASYNC_ERROR_HANDLING).
  TORCH_ARG(c10::intrusive_ptr<c10d::Backend>, process_group) = nullptr;
  /// Size in MiB at which a bucket of gradients is full and its all-reduce may
  /// start. Unset: 25, as in PyTorch; with Gloo half a MiB for each rank, at
  /// least 4 and at most 25.
  TORCH_ARG(std::optional<double>, bucket_cap_mb) = std::nullopt;
  /// Size of the first bucket of each dtype and device, smaller so that
  /// communication starts early.
  TORCH_ARG(double, first_bucket_cap_mb) = 1;
  /// Copies the module's buffers (batch-norm statistics) from rank 0 at the end
  /// of each reduced backward pass. Buffers of other shapes on a rank are an
  /// error when the module is wrapped, and on CPUs in each pass. On GPUs the
  /// ranks do not compare them in a pass: keep the shapes equal on all ranks.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// Replaces that copy by another function, such as `average_buffers`. Needs
  /// broadcast_buffers.
  TORCH_ARG(BufferHook, buffer_hook) = nullptr;
  /// Copies rank 0's parameters and buffers when the module is wrapped. False:
  /// each rank keeps its own, which have to be equal already (a checkpoint that
  /// all ranks have loaded). The modules are still compared, except for their
  /// values.
  TORCH_ARG(bool, init_sync) = true;
  /// Parameters and buffers that stay local to each rank: they are never
  /// compared or sent, and their gradients are not averaged. Names as in
  /// `named_parameters()` and `named_buffers()` of the wrapped module, the same
  /// on all ranks. A tensor with several names is left out if all of them are
  /// listed. The optimizer may have these parameters, and each rank steps its
  /// own; a `ZeroRedundancyOptimizer` refuses them. A checkpoint holds rank
  /// 0's.
  TORCH_ARG(std::vector<std::string>, params_and_buffers_to_ignore) = {};
  /// True: the dense `.grad` of a parameter is the same part of its bucket, at
  /// one address, in every step in which it gets a gradient. The next backward
  /// pass overwrites a gradient that the program has kept. False: `.grad` is
  /// memory of its bucket, too, and nothing is copied back, with two
  /// exceptions. A gradient that the program has kept, and that `.grad` no
  /// longer holds, keeps its values: its bucket gets new memory. A tensor that
  /// the program has put into `.grad` and holds itself gets a copy of the
  /// average. LibTorch's optimizers, both kinds of zero_grad and
  /// clip_grad_norm_ work either way.
  TORCH_ARG(bool, gradient_as_bucket_view) = false;
  /// Treats a parameter without a gradient at the end of a backward pass as
  /// unused on this rank, instead of as an error. A parameter that no rank has
  /// used keeps its `.grad`; others are averaged, with zeros of the ranks that
  /// did not use them. On CPUs a pass in which every gradient comes on every
  /// rank has no further cost; any other pass makes a small all-reduce. On GPUs
  /// each pass makes the all-reduce. A bucket waits for the end of the pass if
  /// a gradient of it is missing.
  TORCH_ARG(bool, find_unused_parameters) = false;
  /// Promises that every pass uses the same parameters in the same way as the
  /// first one. The first pass counts how often each gradient comes (several
  /// times if a nested backward pass of the program accumulates it) and which
  /// parameters have none. Later passes do not wait for these parameters. Ranks
  /// may leave out different parameters. A parameter that no rank has used
  /// keeps its `.grad` and is never sent. A pass that differs is an error of
  /// the rank that made it, with the names. So make no passes of other kinds in
  /// between. Parameters that train in the first pass may be frozen and train
  /// again later. Not together with find_unused_parameters.
  TORCH_ARG(bool, static_graph) = false;
  /// Dtypes of gradients in transit and of buffers. A `Reducer` alone ignores
  /// it.
  TORCH_ARG(MixedPrecision, mixed_precision) = {};
  /// How ranks combine their gradients. Null: `CastExchange` if mixed_precision
  /// has a reduce_dtype, else `SharedMemoryAllReduce` in a wrapper over a group
  /// of the job with Gloo, else `AllReduce`; and nothing for a single rank. The
  /// object keeps state between steps, so each model needs one of its own. It
  /// also runs in a world of one, which needs a process group then
  /// (`init_process_group`), else the constructor throws c10::Error.
  TORCH_ARG(std::shared_ptr<Exchange>, exchange) = nullptr;
};

}  // namespace ddp
