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
/// On the CPU, `.grad` is divided by the number of ranks and copied into its
/// bucket as soon as autograd has accumulated the gradient, with what local
/// passes have left in it. On a GPU the gradients of a bucket are copied and
/// divided together, when the last of them has come. A full bucket is
/// all-reduced at once, in the same order on every rank, and the end of the
/// backward pass waits for all buckets.
/// When `backward()` returns, every `.grad` holds the average.
///
/// Most programs use it through `DistributedDataParallel`. Alone it serves a
/// training loop that has no single module:
/// @code
///   ddp::Reducer reducer(parameters, ddp::process_group());
///   reducer.arm();
///   auto loss = ...;
///   reducer.watch(loss);
///   loss.backward();  // gradients are averaged now
/// @endcode
///
/// `.grad` is then memory of its bucket; nothing is copied back. If the program
/// (without gradient_as_bucket_view) still holds a gradient when the next pass
/// begins, though `.grad` has let it go, the gradient keeps its values and the
/// bucket gets new memory.
///
/// The first reduced pass only records the order in which gradients come. At
/// its end rank 0 plans the buckets by its own order and broadcasts the plan;
/// the buckets are rebuilt and reduced. So every step sums in the same order,
/// including the first step of a resumed training. With find_unused_parameters
/// the buckets are not rebuilt.
///
/// A backward pass is reduced if it accumulates a gradient of a parameter and
/// reaches a watched tensor, or is the first one since `arm`. Other passes stay
/// local to this rank: `torch::autograd::grad`, `backward(inputs)` of other
/// tensors, a pass through parameters that are all frozen. A nested pass, made
/// by a node or a hook of another pass, is a part of that pass, unless it is
/// the first to reach a watched tensor and the other pass has brought no
/// gradient: then it is a pass of its own.
///
/// A parameter with requires_grad off needs no gradient, and its `.grad` does
/// not change. All ranks have to freeze the same parameters.
///
/// The n-th pass of a rank is averaged with the n-th pass of the others. If
/// ranks diverge (one has made an additional pass, has left out an optimizer
/// step, or trains other parameters), on the CPU the next pass at the latest
/// throws on all ranks, and only a new Reducer or `change_group` helps. Steps
/// are compared by a few values of the parameters on the CPU, unless the
/// exchange leaves the ranks different (`Exchange::is_replica_consistent`). On
/// GPUs they are not compared, because reading them would stall the host; a
/// `DesyncGuard` compares them. Different frozen parameters are detected on
/// GPUs one pass later or, if the host is further ahead of the GPU, when the
/// GPU has caught up (printing the loss is enough).
///
/// `backward()` also throws c10::Error if a parameter gets a second gradient in
/// a pass (without static_graph), a gradient of another dtype than the one
/// expected (see `set_grad_dtype`), or a sparse gradient although
/// `NamedParameter::sparse` is false. A group of the job is then closed on this
/// rank, as after an exception from `Exchange::start`. Two reducers that share
/// a parameter may not be in one backward pass, which throws.
///
/// Thread contract: one thread per group; see `DistributedDataParallel`. `arm`
/// and `watch` are called on one thread. Hooks may run on autograd's threads.
///
/// Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data
/// Parallel Training", VLDB 2020; c10d::Reducer. Unlike c10d::Reducer, it turns
/// a missing gradient into an error of the same backward pass, on every rank;
/// on GPUs the other ranks get the error by a later pass or by
/// `destroy_process_group`.
class Reducer {
 public:
  /// Makes a reducer. Does not communicate: the ranks' parameters are neither
  /// compared nor copied, and their options are not compared.
  /// @param parameters  leaves that require a gradient, each tensor once, in
  ///   the same order on all ranks.
  /// @param group  the ranks, for example `ddp::process_group()`.
  /// @param options  the reducer uses the sizes of buckets, the view, the
  ///   exchange, find_unused_parameters, find_unused_on_demand and
  ///   static_graph.
  /// @throws c10::Error if `group` is null, if there is no parameter, if a
  ///   parameter requires no gradient or is no leaf, if an option is invalid (a
  ///   size of a bucket that is not positive, several of the last three
  ///   options), if another reducer holds the exchange, or if the exchange
  ///   refuses a sparse gradient: NCCL has no sparse all-reduce, Gloo has.
  Reducer(std::vector<NamedParameter> parameters,
          c10::intrusive_ptr<c10d::Backend> group,
          const DistributedDataParallelOptions& options = {});
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Makes the next backward pass a reduced one if it accumulates. A pass that
  /// neither accumulates nor reaches a watched tensor does not count.
  /// @throws c10::Error if an exception has left the previous pass before its
  ///   end, or if the ranks have diverged. In the first case it completes that
  ///   pass with the other ranks, unless the exception has closed the group
  ///   (see `Exchange`). On the CPU the other ranks wait in that pass and get
  ///   the same error; on GPUs they get an error by a later pass or by
  ///   `destroy_process_group`. Also, as `disarm` and the first `watch` after
  ///   either, if the dtype or device of a parameter that trains has changed
  ///   since the constructor; a changed shape is LibTorch's error in
  ///   `backward()`.
  void arm();

  /// Undoes `arm`.
  void disarm();

  /// Disables a warning about local passes: if no pass has been reduced yet,
  /// rank 0 warns once when a parameter has changed 25 times between passes of
  /// this rank alone. On a GPU a change is noticed by the parameter's version,
  /// which not every optimizer changes.
  void expect_local_passes();

  /// Makes a backward pass a reduced one if it starts from `output` (or from a
  /// tensor computed from it) and accumulates. Ignores tensors without history.
  void watch(const at::Tensor& output);

  /// Sets an action that runs in every reduced pass, on every rank, after the
  /// gradients have been exchanged; for other data that ranks share once per
  /// step. It may communicate, and must not call this reducer. It runs before
  /// `backward()` returns, on the thread that ends the pass (with GPUs mostly
  /// one of autograd's), with gradient recording off, also in a pass that then
  /// throws for a missing gradient. Its exception is thrown by this rank's
  /// `backward()`. The next pass fails on all ranks; on GPUs it fails on this
  /// rank, and the other ranks get an error by a later pass.
  void on_pass(std::function<void()> action);

  /// Sets a function that returns how many ranks a pass averages over. It is
  /// called on every rank at the beginning of each pass in which the rank has
  /// gradients. It may communicate, and must not call this reducer; if it
  /// throws, there is no pass. The number must be positive, else `backward()`
  /// throws c10::Error. Default: the size of the group.
  void mean_over(std::function<int()> ranks);

  /// Completes a pass of the other ranks without gradients of this one. On the
  /// CPU the call takes as long as their pass: one of them has to be in
  /// `backward()`, or on its way there. Every `.grad` becomes the average, as
  /// in a pass of this rank; its previous value is dropped. The `.grad` of a
  /// parameter that is frozen, or that no rank has used, is undefined
  /// afterwards. `join.h` knows when to call it.
  /// @param ranks  number of ranks that the others average over.
  /// @throws c10::Error as `backward()` does.
  void shadow_pass(int ranks);

  /// Restarts the comparison of the ranks' steps: parameters have been set to
  /// the same values on all ranks, but not after the same number of steps.
  /// Called on all ranks, between passes.
  void forget_steps();

  /// Lets the reducer be destroyed before backward passes of watched tensors.
  /// After its destruction these passes are local; without this call they
  /// throw.
  void release();

  /// Averages over the ranks of another group from now on. Everything restarts
  /// as in a new Reducer (the first pass plans the buckets, a static graph is
  /// learnt again), but watched outputs, the armed state and the functions that
  /// were set remain. Allowed after a failed pass; the ranks of the old group
  /// are not told.
  ///
  /// Does not communicate. Called on all ranks of the new group, between
  /// passes.
  /// @param exchange  null: `AllReduce` over the group. An exchange that a
  ///   reducer holds, including this one, is refused.
  /// @throws c10::Error, without any change, if a pass is being reduced or the
  ///   exchange is refused.
  void change_group(c10::intrusive_ptr<c10d::Backend> group,
                    std::shared_ptr<Exchange> exchange = nullptr);

  /// Whether a backward pass of this rank is being reduced now.
  bool is_in_pass() const;

  /// The current buckets, in order: indices into the constructor's parameters.
  std::vector<std::vector<size_t>> plan() const;

 private:
  // Shared with the running pass.
  std::shared_ptr<detail::ReducerImpl> impl_;
};

}  // namespace ddp
