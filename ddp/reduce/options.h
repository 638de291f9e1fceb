#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/amp/mixed_precision.h"
#include "ddp/exchanges/exchange.h"
#include "ddp/reduce/buffer_hook.h"

namespace ddp {

/// Options of `DistributedDataParallel`; the defaults are PyTorch's. Ranks have
/// equal options, but for gradient_as_bucket_view and, without
/// find_unused_parameters, the sizes of buckets, which are rank 0's; an
/// exchange is of one type on all ranks. Others are an error when a module is
/// wrapped.
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
  /// The ranks that train together. Null: all ranks (`ddp::process_group()`).
  /// Any c10d backend; of a c10d::ProcessGroup `pg` give
  /// `pg->getBackend(device.type())`. One that is not of
  /// `ddp::init_process_group` hears nothing of ranks that leave: with Gloo the
  /// end of a peer's process is an error at once, all else has the group's own
  /// time-out; with NCCL LibTorch's watchdog then ends this process.
  TORCH_ARG(c10::intrusive_ptr<c10d::Backend>, process_group) = nullptr;
  /// Size in MiB at which a bucket of gradients is full and its all-reduce may
  /// start.
  TORCH_ARG(double, bucket_cap_mb) = 25;
  /// The same for the first bucket, smaller so that communication starts early.
  TORCH_ARG(double, first_bucket_cap_mb) = 1;
  /// Instead of both the sizes of the first bucket, the second and so on; the
  /// last one is that of all later buckets.
  TORCH_ARG(std::vector<double>, bucket_cap_mb_list) = {};
  /// Copy the module's buffers (batch-norm statistics) from rank 0 at the end
  /// of each reduced backward pass.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// What is done with the buffers there instead, such as `average_buffers`.
  TORCH_ARG(BufferHook, buffer_hook) = nullptr;
  /// Take rank 0's parameters and buffers when the module is wrapped. False:
  /// each rank keeps its own, which are the same already (a checkpoint that all
  /// have loaded). The modules are compared all the same, but for the values.
  TORCH_ARG(bool, init_sync) = true;
  /// Parameters and buffers that stay each rank's own: never compared or sent,
  /// and gradients of theirs are not averaged. Named as in the
  /// `named_parameters()` and `named_buffers()` of the module that is wrapped,
  /// the same names on all ranks. A tensor that has several names is left out
  /// when all of them are here. The optimizer may still have them, each rank's
  /// steps its own; a `ZeroRedundancyOptimizer` refuses them. A checkpoint
  /// holds rank 0's.
  TORCH_ARG(std::vector<std::string>, params_and_buffers_to_ignore) = {};
  /// Keep every `.grad` at one address: the same piece of its bucket in every
  /// step. A gradient kept over steps is then overwritten by the next backward;
  /// without this option it is not, since buckets whose gradients are still
  /// held get new memory. Both ways `.grad` is its bucket's memory, nothing is
  /// copied back, and LibTorch's optimizers, both kinds of zero_grad and
  /// clip_grad_norm_ work.
  TORCH_ARG(bool, gradient_as_bucket_view) = false;
  /// Take a parameter without a gradient at the end of a backward pass as
  /// unused on this rank, instead of as an error. Costs one small all-reduce a
  /// step. A parameter that no rank used keeps its `.grad` as it was. From the
  /// second pass on buckets do not wait for what the graph of the pass does not
  /// reach; a gradient that a backward pass inside it brings for such, and none
  /// before has brought, is then an error with its name on every rank.
  TORCH_ARG(bool, find_unused_parameters) = false;
  /// The same where it is seldom: passes that bring every gradient cost nothing
  /// more, and buckets follow the order in which gradients come. The first pass
  /// that misses one is a warning on rank 0, with the names, and each such pass
  /// takes three small collectives. On GPUs, whose ranks learn of each other
  /// too late for that, each pass takes one, and each rank warns of its own.
  TORCH_ARG(bool, find_unused_on_demand) = false;
  /// Every pass uses the same parameters in the same way as the first one,
  /// which counts how often each gradient comes (several times where a backward
  /// pass of your own inside the pass accumulates it) and which parameters have
  /// none: those are not waited for, and no pass but the first looks for them.
  /// Ranks may leave out different ones; what none has used keeps its `.grad`
  /// and is never sent.
  /// A pass that differs is an error on every rank, with the names; so use it
  /// without passes of other kinds in between. What trains in the first pass
  /// may be frozen later, and train again.
  TORCH_ARG(bool, static_graph) = false;
  /// In which dtypes a forward computes, gradients travel and buffers are. A
  /// `Reducer` alone does not heed it.
  TORCH_ARG(MixedPrecision, mixed_precision) = {};
  /// How ranks combine their gradients. Null: `AllReduce` over the group. An
  /// object that keeps state between steps, so a model has one of its own. One
  /// rank alone exchanges nothing.
  TORCH_ARG(std::shared_ptr<Exchange>, exchange) = nullptr;
};

}  // namespace ddp
