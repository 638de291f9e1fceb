#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "dp/data_parallel/detail/forward_call.h"
#include "dp/data_parallel/detail/tensor_walk.h"
#include "dp/data_parallel/options.h"

namespace dp {

namespace detail {
struct DataParallelState;
}  // namespace detail

/// Bytes transferred between the first device and one replica since the wrapper
/// was created or since the last `reset_traffic()`. Copies that make or remake
/// a replica are not counted.
///
/// For two replicas on one device, which share its memory, the numbers are the
/// bytes that would be sent between two devices. Gradients of inputs and
/// outputs are not counted; they are as large as the inputs and outputs.
///
/// Inputs and outputs are counted wherever they come from or go to, also if
/// they stay on their device. Replica 0, the module itself, has no state and
/// gradient bytes. `forward_each` counts no outputs, and with one device only
/// inputs are counted.
struct ReplicaTraffic {
  torch::Device device;        ///< device of the replica
  int64_t state_bytes = 0;     ///< parameters and buffers, to the replica
  int64_t input_bytes = 0;     ///< tensors among the arguments, to the replica
  int64_t output_bytes = 0;    ///< tensors in its results, from the replica
  int64_t gradient_bytes = 0;  ///< of parameters, from the replica
};

/// Implements the part of `DataParallel` that does not depend on the type of
/// the module.
class DataParallelBase : public torch::nn::Module {
 public:
  ~DataParallelBase() override;

  /// Returns the devices of the replicas; a GPU has its index. Empty if the
  /// options name no device and there is no GPU: the wrapper then calls the
  /// module directly.
  const std::vector<torch::Device>& devices() const;
  /// Returns the device of the results. This is the CPU if `devices()` is empty
  /// and no output device was set.
  torch::Device output_device() const;

  /// Returns the bytes of state, inputs, results and gradients of each replica,
  /// one entry per replica; empty if `devices()` is empty. Inputs and results
  /// count also if they stay on their device. With one device only inputs
  /// count, and results of `forward_each` never count.
  std::vector<ReplicaTraffic> traffic() const;
  /// Resets the counts of `traffic()` to 0.
  void reset_traffic();

  /// Recreates all replicas from the module. Call this function after a change
  /// to a value that is not a parameter, buffer or training mode, for example a
  /// dropout probability, a counter or an option. A replica keeps the values
  /// that the module had when the replica was cloned.
  /// @throws c10::Error if the module is not on the first device; with two
  ///   devices or more, if a forward is running or if the module cannot be
  ///   cloned.
  void remake_replicas();

  /// Saves and loads the wrapped module without a prefix. Files of the wrapper
  /// and of the plain module are therefore interchangeable.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Loads the wrapped module, as above.
  void load(torch::serialize::InputArchive& archive) override;

  /// Prints the name of the class and the devices.
  void pretty_print(std::ostream& stream) const override;

 protected:
  /// Registers the module and creates the replicas.
  DataParallelBase(std::shared_ptr<torch::nn::Module> module,
                   DataParallelOptions options);

  /// Splits the batch, runs the replicas concurrently and gathers their results
  /// into the result of the first part. Rethrows the exception of the first
  /// failed replica.
  void run(detail::ForwardCall& call);
  /// Same as `run`, without gathering the results.
  void run_each(detail::ForwardCall& call);

 private:
  /// Called by `clone()` of a module that contains the wrapper; always throws.
  void clone_(torch::nn::Module& other,
              const std::optional<torch::Device>& device) override;

  std::unique_ptr<detail::DataParallelState> state_;
};

/// Implementation class of `DataParallel`; see there.
template <typename M>
class DataParallelImpl : public DataParallelBase {
 public:
  /// Wraps `module` and creates its replicas.
  /// @throws c10::Error as described at `DataParallel`.
  explicit DataParallelImpl(std::shared_ptr<M> module,
                            DataParallelOptions options = {})
      : DataParallelBase(module, std::move(options)),
        module_(std::move(module)) {}

  /// Wraps the module of a holder.
  explicit DataParallelImpl(const torch::nn::ModuleHolder<M>& holder,
                            DataParallelOptions options = {})
      : DataParallelImpl(holder.ptr(), std::move(options)) {}

  /// Splits the arguments, runs the replicas' `forward` and gathers their
  /// results. With no device or one device, calls the module's own `forward`. A
  /// forward that returns a struct without `tensor_fields` does not compile,
  /// unless the struct is trivially copyable.
  template <typename... Args>
  auto forward(Args&&... args) {
    using Result = typename Call<Args...>::Result;
    static_assert(detail::shows_all_tensors<Result>,
                  "DataParallel does not see the tensors of this result, and "
                  "would return those of the first replica: define "
                  "tensor_fields(const T&) beside a struct T in it, which "
                  "returns std::tie of its tensors, or call forward_each");
    Call<Args...> call(std::forward<Args>(args)...);
    run(call);
    return call.take_first();
  }

  /// Same as `forward`, without gathering, for a custom aggregation: returns
  /// the result of each replica that has computed, on the replica's device, in
  /// the order of the devices.
  template <typename... Args>
  auto forward_each(Args&&... args) {
    Call<Args...> call(std::forward<Args>(args)...);
    run_each(call);
    return call.take_each();
  }

  /// Returns the wrapped module, for checkpoints (its keys have no "module."
  /// prefix) and for a forward on the first device alone.
  const std::shared_ptr<M>& module() const { return module_; }

 private:
  template <typename... Args>
  using Call = detail::TypedForwardCall<M, std::decay_t<Args>...>;

  std::shared_ptr<M> module_;
};

/// Runs a module's forward on several devices of this process: splits the
/// batch, runs one part on each device's replica and gathers the results. The
/// backward pass adds the replicas' gradients to the module's gradients. The
/// optimizer trains `model->parameters()`, which are the module's own
/// parameters. A training step is equivalent to a step of the plain module on
/// the whole batch, except for batch norm (see below).
///
/// Inputs: the arguments of `forward` are copied for each replica. The module's
/// `forward` must accept rvalues (a parameter of type torch::Tensor& does not
/// compile) and must return a value. All tensors in the arguments, also in
/// vectors, arrays, tuples, pairs, maps, optionals and structs with
/// `tensor_fields` (see below), are split along `dim`. They must all have the
/// same size in `dim`. The chunks are moved to the replicas' devices. `forward`
/// may modify inputs in place if they need no gradient. All other values are
/// the same for all replicas. Tensors in a struct without `tensor_fields` stay
/// on their device. A PackedSequence makes `forward` throw c10::Error: pack the
/// sequences in `forward`. Keep inputs from a data loader on the CPU, because
/// the chunks are then copied directly to their devices.
///
/// Results: tensors are gathered by `DataParallelOptions::aggregate` from the
/// same kinds of containers. Maps need keys that are integers, enums or
/// strings; others do not compile. All other values are taken from the first
/// replica that computes, but sizes of vectors, keys of maps and the presence
/// of optionals must be the same in all parts, also where they hold no tensor.
/// If the batch has fewer rows than there are devices, only the first devices
/// compute. The last devices may also have no rows in larger batches, because
/// torch::chunk makes the equal shares: 5 rows on 4 devices are 2, 2, 1 and
/// 0. If there is no row or no tensor, only the first device computes. With one
/// device the module is called directly.
///
/// Structs: a function `tensor_fields` in the namespace of a struct lists its
/// tensors, also for a struct of another library:
/// @code
///   struct Output { torch::Tensor logits; torch::Tensor loss; };
///   inline auto tensor_fields(const Output& o) {
///     return std::tie(o.logits, o.loss);
///   }
/// @endcode
/// The function returns references, as `std::tie` does. If it returns copies,
/// replacing a tensor (by a chunk, or by one of another device) throws
/// c10::Error. For a struct without tensors it returns `std::tie()`.
///
/// Replicas: replica 0 is the module itself, so changes that its forward makes
/// to buffers persist. Batch norm therefore trains on the statistics of the
/// first device's part, as in PyTorch. The other replicas are persistent
/// clones. Before each forward they receive the module's parameters, buffers
/// and training modes. If the module has other submodules or tensors than
/// before, all clones are recreated. All other members of a replica keep the
/// values from the time of the clone (see `remake_replicas()`). Changes that a
/// clone's forward makes to parameters and buffers are lost; changes to other
/// members stay in that clone. A forward that registers submodules, parameters
/// or buffers (a layer made at its first use) throws c10::Error, because each
/// replica has made its own; and a module with an Embedding or EmbeddingBag
/// with max_norm throws, because a row is renormalised only where it is looked
/// up. However, an object that a clone shares with its
/// module (an object behind a pointer, or a tensor that is not registered) is
/// shared by all replicas, and their threads use it concurrently: do not modify
/// it in `forward`, or guard it with a lock. The module needs a `clone()`
/// (torch::nn::Cloneable) or `make_replica`. Its `reset()` must assign anew all
/// members that hold modules or tensors, because `clone()` copies them first: a
/// `std::vector` of layers is cleared before it is filled. A replica with a
/// member that holds a registered module or tensor of the module throws
/// c10::Error; members that `reset()` fills with anything else, such as
/// functions, are not checked. The construction of replicas
/// restores the states of the default generators of the CPU and of the
/// replica's GPU.
///
/// Threads and streams: the replicas run concurrently, each on a persistent
/// thread with the caller's grad mode, autocast state and current streams, and
/// with the replica's device as the current device. With two devices or more, a
/// ddp::SyncBatchNorm in training mode in the replicas throws c10::Error if its
/// group has several ranks. Replicas that draw random
/// numbers on the CPU share LibTorch's single CPU generator, in an unspecified
/// order; within ddp::checkpoint_activations a replica must not draw random
/// numbers on the CPU. CPU replicas split the caller's intra-op threads among
/// themselves. Autograd runs the backward pass on one thread per GPU, and on
/// the calling thread for the CPU. The first device copies the replicas'
/// gradients to itself and adds them, parameter by parameter. Each copy makes
/// the current streams of both GPUs wait for each other, as in
/// torch::nn::parallel.
///
/// Limits: LibTorch copies between GPUs, with or without NCCL, and no time-out
/// monitors these copies. A GPU that hangs makes the program hang.
/// DistributedDataParallel under ddprun has a time-out for this case. The
/// output device (by default the first one) holds the gathered results, the
/// first device all gradients and the optimizer, and all devices are in one
/// host. `ddp::DistributedDataParallel` has neither limit and is the better
/// choice for long trainings.
///
/// Large results use memory and bandwidth of the first device. To avoid this,
/// pass the targets to `forward` and return its mean loss. With
/// `aggregate(dp::mean)` the result is then the mean loss of the batch, however
/// the batch was split (samples/experiments/loss_in_module.cpp).
///
/// `forward` is a template, as in torch::nn::Sequential. A Sequential or
/// AnyModule needs the types of arguments and result, so it cannot contain the
/// wrapper directly. A derived class that declares the types can be used in
/// both:
/// @code
///   struct ParallelNetImpl : dp::DataParallelImpl<NetImpl> {
///     using DataParallelImpl::DataParallelImpl;
///     torch::Tensor forward(torch::Tensor x) {
///       return DataParallelImpl::forward(std::move(x));
///     }
///   };
///   TORCH_MODULE(ParallelNet);
///   torch::nn::Sequential model(ParallelNet(net), torch::nn::Linear(5, 2));
/// @endcode
///
/// Wrappers cannot be nested, because the inner wrapper of a replica would use
/// the devices of the outer one. Wrap the outermost module once.
///
/// @throws c10::Error if a device does not exist or a GPU is named twice; if
///   the module is not on the first device; with two devices or more, if the
///   module cannot be cloned, contains a wrapper, or has a sparse or quantized
///   parameter or buffer; if the inputs differ in their number of rows, or one
///   of them has no dimension `dim`; if the `tensor_fields` of a struct return
///   copies; or if the results cannot be combined. If a replica throws, the
///   other replicas finish first. Then the exception of the first failed
///   replica is thrown as a c10::Error with, for example, "(replica 1 of 2 on
///   cuda:1)" added; replicas count from 0. An exception of another type is
///   nested in it (std::nested_exception). The next forward works. With one
///   device or none, an exception of the module's forward is not changed.
///
/// Thread contract: one thread per model. With two devices or more, a forward
/// during another forward (from a second thread or from the module's own
/// forward) throws c10::Error. So does a forward in a process that was forked
/// after the first forward, because the replicas' threads do not exist there.
///
/// Example:
/// @code
///   Net net;
///   net->to(torch::Device(torch::kCUDA, 0));
///   dp::DataParallel model(net);  // all GPUs
///   torch::optim::SGD optimizer(model->parameters(), 0.1);
///   auto loss = torch::nll_loss(model->forward(data), target);
///   loss.backward();
///   optimizer.step();
/// @endcode
///
/// Source: torch.nn.DataParallel.
template <typename M>
class DataParallel : public torch::nn::ModuleHolder<DataParallelImpl<M>> {
 public:
  /// The class behind this holder.
  using Impl = DataParallelImpl<M>;
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;

  /// `model(x)` is `model->forward(x)`.
  template <typename... Args>
  auto operator()(Args&&... args) {
    return this->get()->forward(std::forward<Args>(args)...);
  }
};

/// @cond
template <typename M>
DataParallel(const torch::nn::ModuleHolder<M>&, const DataParallelOptions& = {})
    -> DataParallel<M>;
template <typename M>
DataParallel(std::shared_ptr<M>, const DataParallelOptions& = {})
    -> DataParallel<M>;
/// @endcond

}  // namespace dp
