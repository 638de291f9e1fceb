#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <torch/arg.h>
#include <torch/nn/pimpl.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/reduce/buffer_hook.h"
#include "ddp/wrap/distributed_data_parallel.h"

namespace ddp {

namespace detail {
class ShardedUnits;
}

/// Options of `FullyShardedDataParallel`; equal on all ranks.
///
/// Example:
/// @code
///   ddp::FullyShardedDataParallel model(
///       net, ddp::FullyShardedDataParallelOptions().unit_cap_mb(8));
/// @endcode
struct FullyShardedDataParallelOptions {
  /// The ranks that share the model; null: all ranks.
  TORCH_ARG(c10::intrusive_ptr<c10d::Backend>, process_group) = nullptr;

  /// Size of a unit in MiB. A unit is a sequence of parameters in the module's
  /// order. Their gradients are averaged and divided together. In a backward
  /// pass each rank needs memory for the gradients of about two units. Default:
  /// a sixteenth of the parameters' bytes, at least 1 and at most 50 MiB. A
  /// parameter larger than this size begins a unit; the unit's other parameters
  /// have at most an eighth of this size together.
  TORCH_ARG(std::optional<double>, unit_cap_mb) = std::nullopt;

  /// On ranks that gather units, false keeps the units of a forward whole until
  /// the end of the backward pass. The backward pass then gathers nothing, and
  /// each rank needs memory for all parameters during the pass. Ranks that
  /// share memory gather nothing in any case.
  TORCH_ARG(bool, reshard_after_forward) = true;

  /// Dtype in which floating-point parameters are gathered and used, such as
  /// torch::kBFloat16: the dtype of the module's parameters after the
  /// constructor. The leaves, the optimizer's state and checkpoints keep the
  /// dtype that the parameters had. `forward` and `call` convert arguments that
  /// are tensors of another floating-point dtype. With this option even ranks
  /// that could share memory gather. Default: the parameters' dtype. Source:
  /// MixedPrecisionPolicy of fully_shard.
  TORCH_ARG(std::optional<c10::ScalarType>, param_dtype) = std::nullopt;

  /// Dtype in which the ranks send and sum gradients. Default: the dtype of the
  /// parameters while they are used. With this option even ranks that could
  /// share memory gather.
  TORCH_ARG(std::optional<c10::ScalarType>, reduce_dtype) = std::nullopt;

  /// As in `DistributedDataParallelOptions`.
  TORCH_ARG(bool, find_unused_parameters) = false;
  /// As in `DistributedDataParallelOptions`.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// As in `DistributedDataParallelOptions`.
  TORCH_ARG(BufferHook, buffer_hook) = nullptr;
};

/// Part of `FullyShardedDataParallel` that does not depend on the module's
/// type. Create it through `FullyShardedDataParallel`.
class FullyShardedDataParallelBase : public DistributedDataParallelBase {
 public:
  /// Returns the leaves, for an optimizer: this rank's part of each parameter,
  /// in the module's order, of shape [n, 1, ..., 1] with as many dimensions as
  /// the parameter, so that parameter groups may depend on `dim()`. A leaf has
  /// no elements if no part of its parameter belongs to this rank. After a
  /// backward pass the leaf's `.grad` is the mean over ranks of that part's
  /// gradient. A leaf requires a gradient if its parameter did when the module
  /// was wrapped. Freeze parameters and set hooks on the module's parameters;
  /// the next forward throws if a leaf alone has them. No
  /// gradient flows to a leaf: a `backward()` with leaves as its `inputs`
  /// computes nothing. Name the module's parameters instead. In a world of one
  /// the function returns the parameters themselves.
  ///
  /// The optimizer must compute each element by itself, as SGD, Adam, AdamW,
  /// RMSprop, Adagrad and the fused optimizers of this library do. LBFGS
  /// throws, and so does a norm, a sum or a test for NaN of a leaf or its
  /// `.grad`. The optimizer steps after `backward()`, before the next forward
  /// and the next collective. Several optimizers step directly one after the
  /// other.
  std::vector<torch::Tensor> parameters() const;

  /// Returns the leaves of `parameters()` by the names of the wrapped module's
  /// parameters, for parameter groups.
  ///
  /// Example: no weight decay for biases.
  /// @code
  ///   ddp::FullyShardedDataParallel model(net);
  ///   std::vector<torch::Tensor> decayed, others;
  ///   for (const auto& shard : model->named_shards()) {
  ///     const bool is_bias = shard.key().find("bias") != std::string::npos;
  ///     (is_bias ? others : decayed).push_back(shard.value());
  ///   }
  /// @endcode
  torch::OrderedDict<std::string, torch::Tensor> named_shards() const;

  /// Clips the gradients of all ranks by the norm of the whole model's
  /// gradient. Replaces torch::nn::utils::clip_grad_norm_, which would see only
  /// this rank's part and therefore throws. The norm equals the norm of the
  /// unsharded model up to rounding. Collective.
  ///
  /// @param norm_type  p of the norm, above 0; may be infinity.
  /// @returns the norm before clipping, the same on all ranks.
  /// @throws c10::Error if error_if_nonfinite and the norm is not finite.
  double clip_grad_norm_(double max_norm,
                         double norm_type = 2.0,
                         bool error_if_nonfinite = false);

  /// Resets the gradients of the leaves, and the whole gradients that passes
  /// under a `NoSyncGuard` have left. The zero_grad of the optimizer, with
  /// set_to_none, and the zero_grad of the wrapped module do the same.
  void zero_grad(bool set_to_none = true) override;

  std::string join_name() const override { return "FullyShardedDataParallel"; }
  std::string refuses_join() const override;

  /// The units of the module, for `WholeParameters`; null in a world of one.
  const std::shared_ptr<detail::ShardedUnits>& units() const { return units_; }

 protected:
  /// Keeps the options for `synchronize`.
  /// @throws c10::Error if unit_cap_mb is not positive, or as
  ///   `DistributedDataParallelBase`.
  explicit FullyShardedDataParallelBase(
      const FullyShardedDataParallelOptions& options);

  /// Calls `construct`. On ranks other than rank 0, large tensors that it makes
  /// get no memory of their own.
  static void run_constructor(const std::function<void()>& construct,
                              const FullyShardedDataParallelOptions& options);

  /// Makes the parameters readable and prepares the reducer.
  void begin_forward();

  bool has_param_dtype() const { return param_dtype_.has_value(); }
  /// Converts a tensor of another floating-point dtype than param_dtype.
  torch::Tensor to_param_dtype(const torch::Tensor& tensor) const;

  std::vector<std::string> compared_options(
      const c10::intrusive_ptr<c10d::Backend>& ranks,
      const std::shared_ptr<Exchange>& exchange) const override;
  std::string refuses_module(const detail::WrappedModule& found) const override;
  bool moves_module() const override { return true; }
  std::shared_ptr<Exchange> default_exchange(
      const detail::WrappedModule& found) override;
  std::string refuses_group(
      const c10::intrusive_ptr<c10d::Backend>& group,
      const std::shared_ptr<Exchange>& exchange) const override;

 private:
  const std::optional<double> unit_cap_mb_;
  const bool reshard_after_forward_;
  const std::optional<c10::ScalarType> param_dtype_;
  const std::optional<c10::ScalarType> reduce_dtype_;
  std::shared_ptr<detail::ShardedUnits> units_;
};

/// Implementation of `FullyShardedDataParallel` for modules of type `M`.
template <typename M>
class FullyShardedDataParallelImpl : public FullyShardedDataParallelBase {
 public:
  /// Wraps a module; see `FullyShardedDataParallel`.
  explicit FullyShardedDataParallelImpl(
      std::shared_ptr<M> module,
      const FullyShardedDataParallelOptions& options = {})
      : FullyShardedDataParallelBase(options) {
    TORCH_CHECK(module != nullptr,
                "Expected a module to wrap, but got an empty holder");
    module_ = this->register_module("module", std::move(module));
    synchronize(*module_);
  }

  /// Wraps the module of a holder.
  explicit FullyShardedDataParallelImpl(
      const torch::nn::ModuleHolder<M>& holder,
      const FullyShardedDataParallelOptions& options = {})
      : FullyShardedDataParallelImpl(holder.is_empty() ? nullptr : holder.ptr(),
                                     options) {}

  /// Constructs the module by a function and wraps it, for a module that fits
  /// into memory only once. On rank 0 all tensors of the module have memory. On
  /// the other ranks tensors of 1 MiB and more have no memory of their own
  /// during the call: their values are undefined, and the function must not
  /// depend on them. The wrapper then divides rank 0's values, one unit after
  /// the other.
  /// @param make  returns a holder or a `std::shared_ptr` of the module.
  /// @throws c10::Error also, on every rank, if the function of one rank makes
  ///   and keeps a tensor of this size that is neither a parameter nor a buffer
  ///   of the module.
  ///
  /// Example:
  /// @code
  ///   ddp::FullyShardedDataParallel<Net> model([] { return Net(); });
  /// @endcode
  template <
      typename Make,
      typename = std::enable_if_t<std::conjunction_v<
          std::negation<std::is_convertible<Make, std::shared_ptr<M>>>,
          std::negation<
              std::is_convertible<Make, const torch::nn::ModuleHolder<M>&>>,
          std::is_invocable<Make&>>>>
  explicit FullyShardedDataParallelImpl(
      Make&& make, const FullyShardedDataParallelOptions& options = {})
      : FullyShardedDataParallelImpl(construct(make, options), options) {}

  /// Runs the module's own `forward` with these arguments and returns its
  /// result, of any type. In shared memory the first forward after a backward
  /// pass waits for the optimizer steps of the other ranks.
  /// @throws c10::Error as the forward of `DistributedDataParallel`, if a rank
  ///   has left before the end of its step, if the program has given a
  ///   parameter other memory, or if the program has assigned a gradient to a
  ///   parameter of the module outside of local passes.
  template <typename... Args>
  auto forward(Args&&... args) {
    return call(
        [](M& module, auto&&... rest) {
          return module.forward(std::forward<decltype(rest)>(rest)...);
        },
        std::forward<Args>(args)...);
  }

  /// Calls another function of the module in the same way.
  ///
  /// Example:
  /// @code
  ///   ddp::FullyShardedDataParallel model(net);
  ///   auto code = model->call(&NetImpl::encode, data);
  /// @endcode
  template <typename Function, typename... Args>
  auto call(Function&& function, Args&&... args) {
    begin_forward();
    RECORD_USER_SCOPE("FullyShardedDataParallel.forward");
    if (!has_param_dtype()) {
      return std::invoke(std::forward<Function>(function),
                         *module_,
                         std::forward<Args>(args)...);
    }
    std::tuple<decltype(hold(args))...> held(hold(args)...);
    return std::apply(
        [&](auto&... each) {
          return std::invoke(std::forward<Function>(function),
                             *module_,
                             release<Args>(each)...);
        },
        held);
  }

  /// The wrapped module. Its parameters keep names, shapes and dtypes. They
  /// have values from the beginning of a forward of the wrapper to the end of
  /// the next reduced backward pass. An access at another time throws
  /// c10::Error.
  const std::shared_ptr<M>& module() const { return module_; }

 private:
  template <typename Arg>
  static constexpr bool kIsTensor =
      std::is_same_v<std::decay_t<Arg>, torch::Tensor>;

  /// Returns a tensor in param_dtype for a tensor, else a reference to `arg`.
  template <typename Arg>
  auto hold(Arg& arg) const {
    if constexpr (kIsTensor<Arg>) {
      return to_param_dtype(arg);
    } else {
      return std::ref(arg);
    }
  }
  /// Returns the value that `hold` returned for an `Arg`, as an `Arg`.
  template <typename Arg, typename Held>
  static Arg&& release(Held& held) {
    if constexpr (kIsTensor<Arg>) {
      return static_cast<Arg&&>(held);
    } else {
      return static_cast<Arg&&>(held.get());
    }
  }

  template <typename Make>
  static std::shared_ptr<M> construct(
      Make& make, const FullyShardedDataParallelOptions& options) {
    std::shared_ptr<M> module;
    run_constructor(
        [&] {
          auto made = make();
          if constexpr (std::is_convertible_v<decltype(made),
                                              std::shared_ptr<M>>) {
            module = std::move(made);
          } else {
            module = made.ptr();
          }
        },
        options);
    return module;
  }

  std::shared_ptr<M> module_;
};

template <typename M>
class FullyShardedDataParallel;

namespace detail {

template <typename M, typename Module = typename ContainedModule<M>::type>
using ShardedBase = std::conditional_t<
    std::is_same_v<M, Module>,
    torch::nn::ModuleHolder<FullyShardedDataParallelImpl<Module>>,
    FullyShardedDataParallel<Module>>;

}  // namespace detail

/// Trains a module with too much training state for a copy of it on each rank.
/// Each rank keeps its own part of the parameters, of their averaged gradients
/// and of the optimizer's state. CPU ranks of one host share the memory of all
/// parts. Other ranks gather a unit of parameters when an operator uses one of
/// them, and free it after the use of two others. In shared memory and over
/// NCCL, losses, parameters and buffers equal bit for bit the values of a
/// `DistributedDataParallel`. docs/sharding.md describes the costs and the
/// limits.
///
/// The constructor is collective. It verifies that the ranks' modules agree and
/// divides the parameters, with rank 0's values, one unit after the other. Over
/// NCCL a module on the CPU moves to the rank's GPU in this way, so the GPU
/// never holds the whole module. The parameters of the module keep their
/// tensors, shapes and strides. Give the optimizer `model->parameters()`, the
/// leaves: the parts of the parameters that this rank steps. In a world of one
/// the wrapper adds nothing to the module. Otherwise the constructor resets the
/// parameters' gradients.
///
/// From the end of a reduced backward pass to the next forward each rank may
/// change its leaves. During this time the parameters have no memory, and an
/// access to them throws c10::Error. From the beginning of the next forward to
/// the end of the next reduced backward pass the ranks read the parameters, and
/// an access to a leaf's memory throws. Therefore:
/// - Evaluate after the optimizer's step, not before the step.
/// - Make the backward pass of each forward before the next reduced pass ends.
/// - A rank that shares memory may evaluate alone after its step, any number of
///   times.
/// - Ranks that gather use the same parameters in the same order, in forwards,
///   backward passes and evaluations. They compare each use of a unit that is
///   not whole, and all throw c10::Error at the next use if they differ.
///
/// A `NoSyncGuard`, a `GradScaler` with a process_group, autocast,
/// `checkpoint_activations`, parameters that are frozen, shared between layers
/// or not always used, and buffers work as with `DistributedDataParallel`.
///
/// @throws c10::Error on every rank if their modules differ, or if a parameter
///   is on another device than the first one, is not dense, belongs to an
///   Embedding with sparse(true) or max_norm, or shares its memory with another
///   tensor (a view that the program keeps); on its own rank if no parameter
///   requires a gradient. `backward()` throws as with
///   `DistributedDataParallel`. A `Join`, `update_process_group`, an operator
///   that writes to a parameter of the module, and an operator on its `.grad`
///   after a reduced pass throw.
///
/// Thread contract: as `DistributedDataParallel`.
///
/// Example:
/// @code
///   ddp::init_process_group();
///   Net net;
///   ddp::FullyShardedDataParallel model(net);
///   torch::optim::AdamW optimizer(model->parameters(), 3e-4);
///   auto loss = torch::nll_loss(model(data), target);
///   loss.backward();
///   model->clip_grad_norm_(1.0);
///   optimizer.step();
/// @endcode
///
/// Source: torch.distributed.fsdp.fully_shard, with modules as units.
template <typename M>
class FullyShardedDataParallel : public detail::ShardedBase<M> {
  using Holder = detail::ShardedBase<M>;

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
FullyShardedDataParallel(const Net&,
                         const FullyShardedDataParallelOptions& = {})
    -> FullyShardedDataParallel<Net>;
template <typename M>
FullyShardedDataParallel(std::shared_ptr<M>,
                         const FullyShardedDataParallelOptions& = {})
    -> FullyShardedDataParallel<M>;
/// @endcond

/// Gives each rank a copy of all parameters for the duration of a scope. The
/// program may read and write the copy, also by its own kernels and by
/// torch::save. At the end of the scope each rank writes its part of its copy
/// back, so all ranks write the same values. Each rank needs memory for the
/// whole model.
///
/// The constructor and the destructor are collective. Use the scope between an
/// optimizer's step and the next forward, and make no forward of the wrapper
/// and no averaged backward pass in it. In a world of one the class does
/// nothing.
///
/// @throws c10::Error if a rank has left, or in the scope of another
///   `WholeParameters` of the model. If an exception leaves the scope on one
///   rank, that rank discards its copy and closes the group.
///
/// Example:
/// @code
///   ddp::FullyShardedDataParallel model(net);
///   {
///     ddp::WholeParameters whole(*model);
///     torch::NoGradGuard no_grad;
///     model->module()->table->weight.fill_(0.5);
///   }
/// @endcode
class WholeParameters {
 public:
  /// Waits for the other ranks' steps and copies the parameters.
  explicit WholeParameters(const FullyShardedDataParallelBase& model);
  /// Writes this rank's part back.
  ~WholeParameters();
  WholeParameters(const WholeParameters&) = delete;
  WholeParameters& operator=(const WholeParameters&) = delete;

 private:
  const std::shared_ptr<detail::ShardedUnits> units_;
  const int exceptions_;
};

}  // namespace ddp
