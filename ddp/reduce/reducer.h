#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/named_parameter.h"
#include "ddp/reduce/options.h"

namespace ddp {

namespace detail {
class ReducerImpl;
}

/// Averages gradients over ranks while the backward pass still runs.
///
/// Each gradient goes, divided by the number of ranks, into its bucket as soon
/// as autograd has it; a full bucket is all-reduced at once, in the same order
/// on every rank; the end of the backward pass waits for all of them. When
/// `backward()` returns, every `.grad` holds the average.
///
/// `DistributedDataParallel` is the way to use it; alone it serves a training
/// loop that has no single module:
/// @code
///   ddp::Reducer reducer(parameters, ddp::process_group());
///   reducer.arm();
///   auto loss = ...;
///   reducer.watch(loss);
///   loss.backward();  // gradients are averaged now
/// @endcode
///
/// That `.grad` is a piece of its bucket: nothing is copied back. A gradient
/// that is still held when the next pass begins, though `.grad` has let it go,
/// stays as it is: the buckets get new memory then.
///
/// The first reduced pass only records the order in which gradients come; at
/// its end rank 0 plans the buckets by its own order, broadcasts the plan, and
/// the buckets are rebuilt and reduced. So every step adds up in the same
/// order, the first one of a resumed training too. With find_unused_parameters
/// nothing is rebuilt.
///
/// A backward pass is reduced when it accumulates a gradient of a parameter and
/// passes a watched tensor, or is the first one since `arm`. Every other one is
/// this rank's alone: `torch::autograd::grad`, `backward(inputs)` of others, a
/// pass through parameters that are all frozen.
/// A pass that a node or a hook of another one makes is a part of that one,
/// unless it is the first to pass a watched tensor: then it is one of its own.
///
/// A parameter whose requires_grad is off has no gradient and misses none; its
/// `.grad` stays as it is. All ranks are to freeze alike.
///
/// The passes of the ranks are averaged in the order in which they come. That
/// ranks have parted (one has made a pass more, or has left out a step of the
/// optimizer, or trains other parameters) is noticed by the next pass at the
/// latest: an error on all ranks, after which only a new Reducer helps. Whether
/// a rank has stepped is told by a few values of its parameters on the CPU.
/// Steps of parameters on GPUs are not compared, because reading them would
/// stall the host; a `DesyncGuard` compares them. Frozen parameters are noticed
/// there in the pass after, or, where the host is further ahead of the GPU,
/// when it no longer is (a loss that is printed is enough).
///
/// Thread contract: one thread a group; see `DistributedDataParallel`. `arm`
/// and `watch` from one thread. Hooks may come from autograd's threads.
///
/// Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data
/// Parallel Training", VLDB 2020; c10d::Reducer. Unlike it, a missing gradient
/// is an error of the backward pass that missed it, on every rank.
class Reducer {
 public:
  /// @param parameters  leaves that require a gradient, in an order that is the
  ///   same on all ranks; each tensor once.
  /// @param group  the ranks; must live at least as long as a step.
  /// @param options  of these the reducer heeds the sizes of buckets, the view,
  ///   the exchange, find_unused_parameters, find_unused_on_demand and
  ///   static_graph.
  /// @throws c10::Error when there is no parameter, when one needs no gradient,
  ///   or when the exchange does not take its sparse gradients: NCCL has no
  ///   all-reduce for them, Gloo has.
  Reducer(std::vector<NamedParameter> parameters,
          c10::intrusive_ptr<c10d::Backend> group,
          const DistributedDataParallelOptions& options = {});
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Says that the next backward pass is to be reduced, if it accumulates. One
  /// that neither accumulates nor passes a watched tensor does not count.
  /// @throws c10::Error when an exception has left the pass before, or when the
  ///   ranks have parted. In the first case it communicates: the other ranks
  ///   wait in that pass, and get the same error.
  void arm();

  /// Takes it back.
  void disarm();

  /// Says that passes of this rank alone are meant so. Where none has been
  /// reduced yet and nobody has said this, rank 0 warns once, when a parameter
  /// has changed 25 times between such passes.
  void expect_local_passes();

  /// Makes every backward pass that starts from `output` (or from what is
  /// computed of it) and accumulates a reduced one. Tensors without history are
  /// ignored.
  void watch(const at::Tensor& output);

  /// Has `action` called in every reduced pass, on every rank, when the
  /// gradients have been exchanged: for what else the ranks share once a step.
  /// It may communicate, and must leave this reducer alone. Runs on the thread
  /// of `backward()`, with gradient recording off, also in a pass that then
  /// throws for a missing gradient. An exception of it is that of this rank's
  /// `backward()`; the other ranks are told by its next pass, which fails on
  /// all of them.
  void on_pass(std::function<void()> action);

  /// How many ranks a pass averages over: asked at the beginning of each pass
  /// that this rank has gradients for, on every rank, before anything of it. It
  /// may communicate and may throw: then there is no pass. The size of the
  /// group unless it is set.
  void mean_over(std::function<int()> ranks);

  /// Makes a pass with the other ranks in which this one has no gradients, as
  /// long as theirs takes: one of them has to be in `backward()` or on its way
  /// there. Every `.grad` becomes the average of theirs, as in a pass of one's
  /// own; what it held is let go. `join.h` knows when.
  /// @param ranks  over how many the others average.
  /// @throws c10::Error as `backward()` does.
  void shadow_pass(int ranks);

  /// Parameters have been set to the same values on all ranks: whether ranks
  /// step alike is compared from here on. On all ranks, between passes.
  void forget_steps();

  /// Says that backward passes of watched tensors are this rank's alone from
  /// here on, so that the reducer may go before them. Without this call such a
  /// pass throws.
  void release();

  /// Averages over other ranks from here on: all begins again as in a new
  /// Reducer with this group (the first pass plans the buckets, a static graph
  /// is learnt anew), but what was watched or armed stays so, and so do the
  /// actions that were set. Also after a pass has failed: the ranks of the
  /// group before hear nothing of it.
  ///
  /// Communicates nothing. On all ranks of the new group, between passes.
  /// @param exchange  null: `AllReduce` over the group. One that another
  /// reducer
  ///   or this one holds is refused.
  /// @throws c10::Error, and stays as it was, when a pass is being reduced, or
  ///   when the exchange is refused.
  void change_group(c10::intrusive_ptr<c10d::Backend> group,
                    std::shared_ptr<Exchange> exchange = nullptr);

  /// Whether a backward pass of this rank is being reduced now.
  bool is_in_pass() const;

  /// The bucket of each parameter and their order now: indices into the
  /// constructor's parameters.
  std::vector<std::vector<size_t>> plan() const;

 private:
  // Shared with a pass that runs.
  std::shared_ptr<detail::ReducerImpl> impl_;
};

}  // namespace ddp
