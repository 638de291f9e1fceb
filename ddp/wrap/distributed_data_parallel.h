#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "ddp/reduce/options.h"
#include "ddp/tensors/tensor_walk.h"
#include "ddp/wrap/detail/any_forward.h"
#include "ddp/wrap/detail/cast_inputs.h"
#include "ddp/wrap/distributed_data_parallel_base.h"

namespace ddp {

/// The module behind `DistributedDataParallel`; see there.
template <typename M>
class DistributedDataParallelImpl : public DistributedDataParallelBase {
 public:
  explicit DistributedDataParallelImpl(
      std::shared_ptr<M> module,
      const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelBase(options) {
    TORCH_CHECK(module != nullptr,
                "Expected a module to wrap, but got an empty holder");
    module_ = this->register_module("module", std::move(module));
    synchronize(*module_);
  }

  explicit DistributedDataParallelImpl(
      const torch::nn::ModuleHolder<M>& holder,
      const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelImpl(holder.ptr(), options) {}

  /// Runs the module's own `forward` with these arguments and returns what it
  /// returns. Unless gradients are off or a `NoSyncGuard` lives, the backward
  /// pass of the result averages the gradients, if it accumulates any.
  ///
  /// The wrapper must see the tensors of the result: those of
  /// `for_each_tensor`. A struct lists its tensors in a function
  /// `tensor_fields` beside it (ddp/tensor_walk.h); without one a forward that
  /// returns it does not compile.
  ///
  /// Communicates nothing: a rank may evaluate alone.
  ///
  /// @throws c10::Error when a parameter trains that was frozen when the module
  ///   was wrapped, when a parameter's shape, strides, dtype or device is no
  ///   longer that of the wrap, or when the ranks have parted; see `Reducer`.
  template <typename... Args>
  auto forward(Args&&... args) {
    return watched(
        [this](auto&&... inputs) {
          return module_->forward(std::forward<decltype(inputs)>(inputs)...);
        },
        std::forward<Args>(args)...);
  }

  /// The same by another name than `forward`: a member function of the module,
  /// or anything that takes the module first. Of several calls before one
  /// `backward()` that one averages.
  ///
  /// Example:
  /// @code
  ///   auto code = model->call(&NetImpl::encode, data);
  ///   auto loss = model->call([&](NetImpl& net) { return net.loss(code); });
  /// @endcode
  template <typename Function, typename... Args>
  auto call(Function&& function, Args&&... args) {
    return watched(
        [&](auto&&... inputs) {
          return std::invoke(std::forward<Function>(function),
                             *module_,
                             std::forward<decltype(inputs)>(inputs)...);
        },
        std::forward<Args>(args)...);
  }

  /// The wrapped module: for checkpoints (its keys have no "module." prefix),
  /// and for a forward and backward on this rank alone. Where that is all that
  /// trains it, rank 0 warns after 25 steps of the optimizer, unless they are
  /// made while a `NoSyncGuard` lives.
  const std::shared_ptr<M>& module() const { return module_; }

 private:
  template <typename Forward, typename... Args>
  auto watched(const Forward& forward, Args&&... args) {
    before_forward();
    const auto casts = cast_parameters();
    auto output = detail::with_inputs_as(
        input_dtype(), forward, std::forward<Args>(args)...);
    static_assert(
        detail::shows_all_tensors<decltype(output)>,
        "Expected a result whose tensors the wrapper sees, because it averages "
        "the gradients of a pass that begins at one of them; write a function "
        "tensor_fields(const T&) beside a struct T in it, which returns "
        "std::tie of its tensors, or std::tie() without any");
    for_each_tensor(output,
                    [this](const torch::Tensor& tensor) { watch(tensor); });
    return output;
  }

  std::shared_ptr<M> module_;
};

namespace detail {

/// @tparam M  a module or its holder.
template <typename M, typename Module = typename ContainedModule<M>::type>
using WrapperHolder = torch::nn::ModuleHolder<
    AnyForward<DistributedDataParallelImpl<Module>,
               typename ForwardSignature<Module>::type>>;

}  // namespace detail

/// Wraps a module so that its replicas on all ranks train as one on the union
/// of their batches: every `.grad` is the mean over ranks when `backward()`
/// returns, and with the same optimizer on every rank the parameters stay equal
/// bit for bit.
///
/// The constructor is collective. It checks that the ranks' modules agree and
/// gives them rank 0's parameters and buffers. It takes a module holder or a
/// `std::shared_ptr` to a module of any type with any `forward`; as a type
/// `DistributedDataParallel<Net>` and `DistributedDataParallel<NetImpl>` both
/// wrap a `Net`. The optimizer takes `model->parameters()`. A world of one
/// needs no branch: the wrapper then costs nothing.
///
/// The loss is to be the mean over a rank's batch, and batches of one size, for
/// the mean over ranks to be the mean over the whole batch.
///
/// The parameters may lie on several devices (model parallel): every rank then
/// has devices of its own and divides the module over them as the others do.
/// GPUs of such a module compute on their default streams.
///
/// @throws c10::Error on every rank when names, shapes, strides, dtypes,
///   requires_grad or the division over devices of the parameters or buffers
///   differ between ranks, or options that have to be equal, naming the first;
///   `backward()` throws on every rank when a parameter got no gradient on one,
///   and when a rank has left (on a GPU by the next pass, or by
///   `ddp::destroy_process_group()`; see `ddp::init_process_group`).
///
/// A parameter may be frozen later and thawed again, on all ranks alike; one
/// that was frozen when it was wrapped needs a new wrapper to train. While it
/// is frozen its zeros still travel in each pass: wrap anew what stays frozen.
///
/// Wrappers may share parameters and train them in backward passes of their
/// own, in any order of forwards and passes. Two of them in one backward pass
/// are an error, and so is a wrapper that is destroyed before `backward()` of
/// its outputs.
///
/// GPUs: wrap under the stream under which you train.
///
/// It goes wherever a module does: into a torch::nn::AnyModule or Sequential
/// too, where the module's forward has one signature (Sequential's counts as
/// Tensor to Tensor). Then `to()` of what it is in throws, and the gradients of
/// the layers around it are each rank's own.
///
/// Thread contract: one thread a group, because its collectives meet in the
/// order of the calls. A second thread takes a group of its own
/// (`ddp::new_group`). Models of one thread make their passes in one order on
/// all ranks. In a group of the job, overlapping passes of two threads are an
/// error on all ranks, and so are passes of two models whose last collectives
/// meet.
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
class DistributedDataParallel : public detail::WrapperHolder<M> {
  using Holder = detail::WrapperHolder<M>;

 public:
  using Impl =
      DistributedDataParallelImpl<typename detail::ContainedModule<M>::type>;
  using Holder::Holder;

  // Those of the holder give one with a forward for AnyModule alone, which
  // knows no default arguments.
  Impl* operator->() { return this->get(); }
  const Impl* operator->() const { return this->get(); }
  Impl& operator*() { return *this->get(); }
  const Impl& operator*() const { return *this->get(); }

  /// The same as `forward`.
  template <typename... Args>
  auto operator()(Args&&... args) {
    return (*this)->forward(std::forward<Args>(args)...);
  }
};

template <typename M>
DistributedDataParallel(const torch::nn::ModuleHolder<M>&)
    -> DistributedDataParallel<M>;
template <typename M>
DistributedDataParallel(const torch::nn::ModuleHolder<M>&,
                        const DistributedDataParallelOptions&)
    -> DistributedDataParallel<M>;
template <typename M>
DistributedDataParallel(std::shared_ptr<M>) -> DistributedDataParallel<M>;
template <typename M>
DistributedDataParallel(std::shared_ptr<M>,
                        const DistributedDataParallelOptions&)
    -> DistributedDataParallel<M>;

/// While it lives, backward passes of this model's forwards accumulate
/// gradients on each rank alone. The first pass after it averages what has
/// gathered, so gradient accumulation over k batches costs one communication
/// instead of k.
///
/// The forward must be inside. Guards nest.
///
/// Example:
/// @code
///   {
///     ddp::NoSyncGuard no_sync(*model);
///     loss(model->forward(first_half)).backward();
///   }
///   loss(model->forward(second_half)).backward();  // averages both
/// @endcode
class NoSyncGuard {
 public:
  explicit NoSyncGuard(DistributedDataParallelBase& model) : model_(model) {
    model_.pause();
  }
  ~NoSyncGuard() { --model_.pauses_; }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  DistributedDataParallelBase& model_;
};

}  // namespace ddp
