#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/named_parameter.h"
#include "ddp/reduce/no_sync_guard.h"
#include "ddp/reduce/options.h"

namespace ddp {

namespace detail {
class ReducerImpl;
struct RecordedPass;
}  // namespace detail

/// Functions that a reducer calls in each reduced pass, on every rank. They
/// must not call the reducer.
struct PassFunctions {
  /// Returns how many ranks a pass averages over, a positive number, else
  /// `backward()` throws c10::Error. Called at the beginning of each pass in
  /// which the rank has gradients. It may communicate; if it throws, there is
  /// no pass. Default: the size of the group.
  std::function<int()> ranks;
  /// Runs after the gradients have been exchanged; for other data that ranks
  /// share once per step. It may communicate. It runs before `backward()`
  /// returns, on the thread that ends the pass (with GPUs mostly one of
  /// autograd's).
  std::function<void()> at_end;
  /// Called once in each pass, when the rank's last gradient has come. Returns
  /// whether all ranks must call `compare`. Must not communicate.
  std::function<bool()> is_asked;
  /// A comparison of all ranks, before `at_end`, in a pass in which `is_asked`
  /// has returned true on one of them. It may communicate. On CPUs only.
  std::function<void()> compare;
};

/// Averages gradients over ranks while the backward pass still runs.
///
/// On the CPU, `.grad` is divided by the number of ranks and copied into its
/// bucket as soon as autograd has accumulated the gradient, with the gradients
/// of local passes. On a GPU the gradients of a bucket are copied and
/// divided together, when the last of them has come. A full bucket is
/// all-reduced at once, in the same order on every rank, and the end of the
/// backward pass waits for all buckets.
/// When `backward()` returns, every `.grad` holds the average.
///
/// Most programs use it through `DistributedDataParallel`. Alone it serves a
/// training loop that has no single module:
/// @code
///   ddp::Reducer reducer(parameters, ddp::process_group());
///   auto loss = ...;
///   loss.backward();  // gradients are averaged now
/// @endcode
///
/// `.grad` is then memory of its bucket; nothing is copied back. If the program
/// (without gradient_as_bucket_view) still holds a gradient when the next pass
/// begins, but `.grad` does not, the gradient keeps its values and the bucket
/// gets new memory.
///
/// A tensor that the program has put into `.grad`, and that it holds itself (a
/// part of one flat buffer), gets a copy of the average instead.
///
/// One rule says which passes are reduced: a backward pass that accumulates a
/// gradient of a parameter outside of a `NoSyncGuard`,
/// started from any tensor. `torch::autograd::grad` and `backward(inputs)` of
/// other tensors accumulate none. The guard counts where a gradient is
/// accumulated. A nested pass, made by a node or a hook of another pass, is a
/// part of that pass, and the pass ends with the outermost `backward()`.
///
/// The first reduced pass only records the order in which gradients come. At
/// its end rank 0 plans the buckets by its own order and broadcasts the plan;
/// the buckets are rebuilt and reduced. So every step sums in the same order,
/// including the first step of a resumed training.
///
/// A gradient that a function of the graph leaves undefined counts as zeros.
/// With find_unused_parameters, and in the first pass of a static graph, the
/// parameter counts as unused instead.
///
/// A parameter with requires_grad off needs no gradient, and its `.grad` does
/// not change. All ranks have to freeze the same parameters.
///
/// The n-th pass of a rank is averaged with the n-th pass of the others. A pass
/// that a rank makes alone waits for the others' next pass. On CPUs the ranks
/// compare a few bits in each pass: passes of different models, of different
/// numbers or with different frozen parameters that meet are an error on all
/// ranks in most cases in that pass, and within a few passes for certain. On
/// GPUs the ranks do not compare, as in PyTorch, because reading would stall
/// the host.
///
/// Errors: a parameter that got no gradient (unless an option allows that), a
/// second gradient in a pass (without static_graph), a gradient of another
/// dtype than expected (see `set_grad_dtype`), a sparse gradient although
/// `NamedParameter::sparse` is false, a post-accumulate-grad hook of the
/// program that changes its parameter (an optimizer's step), resets `.grad` or
/// was set between forward and backward, an exception of the exchange or of a
/// function that was set. `backward()` then throws on this rank. If the group
/// belongs to the job, the rank announces the text, its group is closed, and
/// the waits of the other ranks end with an error that has the text, on CPUs
/// and GPUs alike. In any other group the other ranks wait for the time-out.
/// From then on forwards and passes throw, until `change_group` or a new
/// Reducer. An exception of the program that leaves a pass before its end is
/// detected and announced by the next forward or gradient, by the destructor,
/// and by `destroy_process_group`.
///
/// Of several reducers that share a parameter, the reducer of the last forward
/// owns it. A pass of another reducer is an error with the parameter's name.
///
/// Thread contract: one thread per group; see `DistributedDataParallel`. Hooks
/// may run on autograd's threads.
///
/// Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data
/// Parallel Training", VLDB 2020; c10d::Reducer. Unlike c10d::Reducer, it turns
/// a missing gradient into an error of the same backward pass.
class Reducer {
 public:
  /// Makes a reducer. Does not communicate: the ranks' parameters are neither
  /// compared nor copied, and their options are not compared.
  /// @param parameters  leaves that require a gradient, each tensor once, in
  ///   the same order on all ranks.
  /// @param group  the ranks, for example `ddp::process_group()`.
  /// @param options  the reducer uses the sizes of buckets, the view, the
  ///   exchange, find_unused_parameters and static_graph.
  /// @throws c10::Error if `group` is null, if there is no parameter, if a
  ///   parameter requires no gradient or is no leaf, if an option is invalid (a
  ///   size of a bucket that is not positive, both of the last two options), if
  ///   another reducer holds the exchange, or if the exchange refuses a sparse
  ///   gradient: NCCL has no sparse all-reduce, Gloo has.
  Reducer(std::vector<NamedParameter> parameters,
          c10::intrusive_ptr<c10d::Backend> group,
          const DistributedDataParallelOptions& options = {});
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Claims the parameters for this reducer, before a forward that uses them.
  /// Needed if other reducers share some of them, and if the program has
  /// replaced their hooks (LibTorch's post-accumulate-grad hooks). A tensor
  /// that replaces a parameter is not detected: it needs a new reducer.
  /// `DistributedDataParallel` calls it in each forward.
  /// @throws c10::Error if a pass has failed or an exception has left one
  ///   before its end, or if the shape, strides, dtype or device of a parameter
  ///   that trains has changed since the constructor, or as
  ///   `BucketConsumer::check_gradient`.
  void before_forward();

  /// Sets the functions that each reduced pass calls.
  void set_functions(PassFunctions functions);

  /// Completes a pass of the other ranks without gradients of this one. On the
  /// CPU the call takes as long as their pass: at least one of them has to call
  /// `backward()`. Every `.grad` becomes the average, as in a pass of this
  /// rank; its previous value is dropped. The `.grad` of a parameter that is
  /// frozen, or that no rank has used, is undefined afterwards. A `Join` calls
  /// it.
  /// @param ranks  number of ranks that the others average over.
  /// @throws c10::Error as `backward()` does.
  void shadow_pass(int ranks);

  /// Lets the reducer be destroyed before backward passes of earlier forwards.
  /// After its destruction these passes are local; without this call they
  /// throw, unless a pass has ended since the last `before_forward`.
  void release();

  /// Averages over the ranks of another group from now on. Everything restarts
  /// as in a new Reducer (the first pass plans the buckets, a static graph is
  /// learnt again), but the functions that were set remain. Allowed after a
  /// failed pass; does not inform the ranks of the old group.
  ///
  /// Does not communicate. Called on all ranks of the new group, between
  /// passes.
  /// @param exchange  null: `AllReduce` over the group. An exchange that a
  ///   reducer holds, including this one, is refused.
  /// @throws c10::Error, without any change, if a pass is being reduced or the
  ///   exchange is refused.
  void change_group(c10::intrusive_ptr<c10d::Backend> group,
                    std::shared_ptr<Exchange> exchange = nullptr);

  /// Holds the memory of the buckets while the result lives, from the first
  /// reduced pass on, in which the buckets are planned: the gradients of every
  /// pass have the same addresses, and a gradient that the program still holds
  /// gets the values of the next pass, as with gradient_as_bucket_view. For
  /// work that was recorded with these addresses. `change_group` makes other
  /// buckets; their memory is not held.
  /// @throws c10::Error if a pass is being reduced, or before the end of the
  ///   first one.
  [[nodiscard]] std::shared_ptr<const void> hold_memory();

  /// For `GraphedStep`. Returns the reason why passes cannot be recorded in a
  /// CUDA graph, or "".
  std::string refuses_recording() const;
  /// From now until `end_recording` the current stream records the work of a
  /// pass. The pass does not count.
  void begin_recording();
  /// Returns the recorded pass, which holds the memory of the buckets; null if
  /// an exception has left the pass, which is announced as for any other pass.
  /// @param error  text of an exception that has ended the recording, or "".
  std::shared_ptr<const detail::RecordedPass> end_recording(
      const std::string& error = "");
  /// Makes a pass: `launch` queues its work on the current stream.
  /// @throws c10::Error as `backward()` does, or if the group has changed.
  void replay(const detail::RecordedPass& pass,
              const std::function<void()>& launch);

  /// Whether a backward pass of this rank is being reduced now.
  bool is_in_pass() const;

  /// The current buckets, in order: indices into the constructor's parameters.
  std::vector<std::vector<size_t>> plan() const;

  /// For `NoSyncGuard`: the number of its guards.
  const detail::Pauses& pauses() const;

 private:
  friend class DistributedDataParallelBase;
  void share_pauses(detail::Pauses pauses);

  // Shared with the running pass.
  std::shared_ptr<detail::ReducerImpl> impl_;
};

}  // namespace ddp
