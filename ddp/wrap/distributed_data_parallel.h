#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <ATen/record_function.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "ddp/reduce/no_sync_guard.h"
#include "ddp/reduce/options.h"
#include "ddp/wrap/distributed_data_parallel_base.h"

namespace ddp {

/// Implementation of `DistributedDataParallel` for modules of type `M`.
template <typename M>
class DistributedDataParallelImpl : public DistributedDataParallelBase {
 public:
  /// Wraps a module; see `DistributedDataParallel`.
  explicit DistributedDataParallelImpl(
      std::shared_ptr<M> module,
      const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelBase(options) {
    TORCH_CHECK(module != nullptr,
                "Expected a module to wrap, but got an empty holder");
    module_ = this->register_module("module", std::move(module));
    synchronize(*module_);
  }

  /// Wraps the module of a holder.
  explicit DistributedDataParallelImpl(
      const torch::nn::ModuleHolder<M>& holder,
      const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelImpl(holder.is_empty() ? nullptr : holder.ptr(),
                                    options) {}

  /// Runs the module's own `forward` with these arguments and returns its
  /// result, of any type. Outside of a `NoSyncGuard`, a backward pass that
  /// accumulates gradients of the module's parameters averages them. The pass
  /// may start from any tensor: the result, a tensor that the forward has
  /// stored in a member, or a computation of `module()`.
  ///
  /// Does not communicate: a rank may evaluate alone. Exceptions: inside a
  /// `Join` with throw_on_early_termination, a forward with gradient recording
  /// exchanges one number; a `SyncBatchNorm` in training mode communicates.
  ///
  /// @throws c10::Error, with gradient recording and several ranks or an
  ///   exchange, if the module has a parameter that it did not have when it was
  ///   wrapped, if a parameter that was frozen then requires a gradient now, if
  ///   a parameter's shape, dtype or device has changed, or if a backward pass
  ///   has failed or was ended by an exception; see `Reducer`. Inside a `Join`
  ///   with throw_on_early_termination the forward also throws if a rank has no
  ///   inputs left.
  template <typename... Args>
  auto forward(Args&&... args) {
    before_forward();
    RECORD_USER_SCOPE("DistributedDataParallel.forward");
    return module_->forward(std::forward<Args>(args)...);
  }

  /// The wrapped module. Use it for checkpoints, because its keys have no
  /// "module." prefix, and to call other functions than `forward`. A backward
  /// pass of their results averages like a pass of the wrapper, and throws for
  /// new and unfrozen parameters like a forward. Make a backward pass on this
  /// rank alone under a `NoSyncGuard`.
  ///
  /// Example:
  /// @code
  ///   auto code = model->module()->encode(data);
  ///   auto loss = model->module()->loss(code);
  /// @endcode
  const std::shared_ptr<M>& module() const { return module_; }

 private:
  std::shared_ptr<M> module_;
};

template <typename M>
class DistributedDataParallel;

namespace detail {

/// The module type of a holder (`TORCH_MODULE`), or `M` itself for a module.
template <typename M, typename = void>
struct ContainedModule {
  using type = M;
};
template <typename M>
struct ContainedModule<M, std::void_t<typename M::ContainedType>> {
  using type = typename M::ContainedType;
};

/// The base of `DistributedDataParallel<M>`: for a holder type `M` the wrapper
/// of its module type.
template <typename M, typename Module = typename ContainedModule<M>::type>
using WrapperBase = std::conditional_t<
    std::is_same_v<M, Module>,
    torch::nn::ModuleHolder<DistributedDataParallelImpl<Module>>,
    DistributedDataParallel<Module>>;

}  // namespace detail

/// Wraps a module so that its replicas on all ranks train like one model on the
/// union of their batches. When `backward()` returns, every `.grad` holds the
/// mean over ranks. With the same optimizer on every rank the parameters stay
/// equal bit for bit.
///
/// The constructor is collective. It verifies that the ranks' modules agree and
/// copies rank 0's parameters and buffers to all ranks; the buffers are copied
/// again at the end of each reduced backward pass
/// (`DistributedDataParallelOptions::broadcast_buffers`). It accepts a module
/// holder or a `std::shared_ptr` to a module of any type with any `forward`.
/// Construct the optimizer with `model->parameters()`. A world of one needs no
/// special case: the wrapper then has no cost. An exchange that the program
/// gives runs in a world of one, too.
///
/// The type: `DistributedDataParallel model(net)` is a
/// `DistributedDataParallel<Net>` for a holder `Net net`, and a
/// `DistributedDataParallel<NetImpl>` for a `std::shared_ptr<NetImpl>`. The
/// first is derived from the second, so a function that takes a
/// `DistributedDataParallel<NetImpl>&` accepts both.
///
/// The mean over ranks equals the mean over the whole batch if the loss is a
/// mean over the rank's batch and all ranks use the same batch size. Without
/// `ddp::init_process_group()` or a group in the options, the wrapper trains
/// this rank alone; if WORLD_SIZE is above 1, its constructor throws c10::Error
/// instead.
///
/// The parameters may lie on several devices (model parallel). Every rank then
/// needs its own set of devices, and all ranks must divide the module over
/// their devices in the same way. The GPUs of a model-parallel module compute
/// on their default streams.
///
/// A forward must not change parameters: each rank would change its own. An
/// Embedding or EmbeddingBag with max_norm changes its weight, and is an error
/// with several ranks unless the weight is ignored. The constructor reads
/// max_norm: do not set it later.
///
/// @throws c10::Error on every rank if names, shapes, strides, dtypes,
///   requires_grad or the division over devices of the parameters or buffers
///   differ between ranks, or if options that must be equal differ; the message
///   names the first difference. `backward()` throws if a parameter got no
///   gradient (unless an option such as find_unused_parameters allows that), or
///   if a rank has left the job or the group's time-out is over. If a pass
///   fails on one rank, `backward()` throws that rank's error text on the other
///   ranks, too; see `Reducer` and `ddp::init_process_group`. The constructor
///   also throws if a rank has left or the time-out is over, and on its own
///   rank if no parameter requires a gradient or an option is invalid; with
///   NCCL it throws on every rank if the module of one rank is not on the GPU
///   of that rank.
///
/// A parameter may be frozen later and unfrozen again, in the same way on all
/// ranks. A parameter that was frozen when its module was wrapped cannot be
/// trained until the module is wrapped again. Parameters that are frozen after
/// the wrap are still communicated in each pass (their old `.grad`, or zeros),
/// for nothing: wrap the module again if they stay frozen.
///
/// Several wrappers may share parameters: make the backward pass of each before
/// the forward of the next. The last forward claims the parameters, and a pass
/// of another wrapper is an error that names the parameter. Destroying a
/// wrapper before `backward()` of its outputs is an error, too.
///
/// The wrapper is a module and can be used as a submodule. For a Sequential or
/// AnyModule, derive a class from `DistributedDataParallelImpl` with a
/// `forward` that is no template, as in the example of `dp::DataParallel`. The
/// gradients of the surrounding layers are not averaged. `to()` of the wrapper
/// and of a surrounding module throws c10::Error: move the module before it is
/// wrapped.
///
/// Thread contract: use each group from one thread only, because the n-th
/// collective of a rank in a group meets the n-th collective of the others. A
/// second thread needs a group of its own (`ddp::new_group`). Models that are
/// trained by one thread must run their passes in the same order on all ranks.
/// Groups of the job detect overlapping passes of two threads. On CPUs a pass
/// of one model that meets a pass of another model is an error on all ranks;
/// see `Reducer`.
///
/// Example:
/// @code
///   ddp::init_process_group();
///   Net net;
///   net->to(ddp::local_device());
///   ddp::DistributedDataParallel model(net);
///   torch::optim::SGD optimizer(model->parameters(), 0.1);
///   auto loss = torch::nll_loss(model(data), target);
///   loss.backward();
///   optimizer.step();
/// @endcode
///
/// Source: torch.nn.parallel.DistributedDataParallel.
template <typename M>
class DistributedDataParallel : public detail::WrapperBase<M> {
  using Holder = detail::WrapperBase<M>;

 public:
  using Holder::Holder;

  /// Same as `forward`.
  template <typename... Args>
  auto operator()(Args&&... args) {
    return (*this)->forward(std::forward<Args>(args)...);
  }
};

/// @cond
template <typename Net, typename = typename Net::ContainedType>
DistributedDataParallel(const Net&, const DistributedDataParallelOptions& = {})
    -> DistributedDataParallel<Net>;
template <typename M>
DistributedDataParallel(std::shared_ptr<M>,
                        const DistributedDataParallelOptions& = {})
    -> DistributedDataParallel<M>;
/// @endcond

}  // namespace ddp
