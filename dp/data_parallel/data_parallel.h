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
#include "dp/data_parallel/options.h"
#include "dp/data_parallel/traffic.h"

namespace dp {

namespace detail {
struct DataParallelState;
}  // namespace detail

/// What `DataParallel` does for any type of module.
class DataParallelBase : public torch::nn::Module {
 public:
  ~DataParallelBase() override;

  /// The replicas' devices, each with its number. Empty when the wrapper just
  /// calls the module, because there is no GPU.
  const std::vector<torch::Device>& devices() const;
  /// Where results lie; the CPU when there is no device.
  torch::Device output_device() const;

  /// What was sent between the first device and each replica, by replica.
  std::vector<ReplicaTraffic> traffic() const;
  void reset_traffic();

  /// Clones the module anew. Call it after changing what is no parameter,
  /// buffer or training mode: a dropout probability, a counter, an option.
  /// Replicas keep such values from the time when they were cloned.
  void remake_replicas();

  /// torch::save and torch::load of the wrapper are those of the module, so
  /// that the file loads into the plain module and the other way round.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  void pretty_print(std::ostream& stream) const override;

 protected:
  const DataParallelOptions& options() const;
  void check_clone(const std::optional<torch::Device>& device) const;

  /// Registers the module and makes the replicas.
  DataParallelBase(std::shared_ptr<torch::nn::Module> module,
                   DataParallelOptions options);

  /// Runs a batch: splits it, runs the replicas at once and gathers what they
  /// return in the result of the first part. Throws what the first of them
  /// threw.
  void run(detail::ForwardCall& call);
  /// The same without gathering.
  void run_each(detail::ForwardCall& call);

 private:
  std::unique_ptr<detail::DataParallelState> state_;
};

/// The module behind `DataParallel`; see there.
template <typename M>
class DataParallelImpl : public DataParallelBase {
 public:
  explicit DataParallelImpl(std::shared_ptr<M> module,
                            DataParallelOptions options = {})
      : DataParallelBase(module, std::move(options)),
        module_(std::move(module)) {}

  explicit DataParallelImpl(const torch::nn::ModuleHolder<M>& holder,
                            DataParallelOptions options = {})
      : DataParallelImpl(holder.ptr(), std::move(options)) {}

  /// Splits the arguments, runs the replicas' `forward` and gathers what they
  /// return; with no device or one the module's own.
  template <typename... Args>
  auto forward(Args&&... args) {
    Call<Args...> call(std::forward<Args>(args)...);
    run(call);
    return call.take_first();
  }

  /// The same without gathering: what each replica returned, on its device, for
  /// an aggregation of your own.
  template <typename... Args>
  auto forward_each(Args&&... args) {
    Call<Args...> call(std::forward<Args>(args)...);
    run_each(call);
    return call.take_each();
  }

  /// A wrapper with the same options around a copy of the module, on the same
  /// devices.
  /// @throws c10::Error when the module has no `clone()` of its own type, or
  ///   when it is to be elsewhere than on the first device.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device =
          std::nullopt) const override {
    check_clone(device);
    auto copy = std::dynamic_pointer_cast<M>(module_->clone(device));
    TORCH_CHECK(copy != nullptr,
                "Expected clone() of the wrapped module to be of its type, but "
                "got another; clone() must be that of the most derived class");
    return std::make_shared<DataParallelImpl>(std::move(copy), options());
  }

  /// The wrapped module: for checkpoints (its keys have no "module." prefix),
  /// and for a forward on the first device alone.
  const std::shared_ptr<M>& module() const { return module_; }

 private:
  template <typename... Args>
  using Call = detail::TypedForwardCall<M, std::decay_t<Args>...>;

  std::shared_ptr<M> module_;
};

/// Runs a module's forward on several devices of this process: splits the
/// batch, gives each device's replica its part, and gathers the results. The
/// backward pass adds the replicas' gradients to the module's, and the
/// optimizer trains `model->parameters()`, which are the module's own. A step
/// is that of the plain module on the whole batch (batch norm apart, see
/// below).
///
/// Arguments of `forward` are copied for each replica; every tensor in them, in
/// vectors, arrays, tuples, pairs, maps, optionals and structs with
/// `tensor_fields` (ddp/tensor_walk.h), is split along `dim`, where all must
/// have one size, and its chunks go to the replicas' devices; forward may
/// change inputs in place that need no gradient. All other values are the same
/// for all; tensors in a struct without `tensor_fields` stay where they are. A
/// PackedSequence is an error: pack the sequences in forward.
/// Inputs from a data loader are best left on the CPU, from where the chunks go
/// straight to their devices. Results are gathered from the same kinds of
/// containers, maps by keys that are integers, enums or strings: tensors by
/// `DataParallelOptions::aggregate`, other values are replica 0's. With fewer
/// rows than devices the first devices compute; with no row or no tensor at all
/// the first one alone. With one device the module is called directly.
///
/// Replica 0 is the module itself, so what its forward does to buffers stays:
/// batch norm trains on the statistics of the first device's part, as in
/// PyTorch. The other replicas are clones that are kept; before each forward
/// they get the module's parameters, buffers and training modes, and when it
/// has other submodules or tensors than before, they are cloned anew. What a
/// module holds besides, they keep from the time they were cloned, see
/// `remake_replicas()`; what their forward changes is lost. But what a clone
/// shares with its module (an object behind a pointer, a tensor that is not
/// registered) is one for all replicas, and their threads use it at the same
/// time: leave it as it is in forward, or lock it. A module needs a `clone()`
/// (torch::nn::Cloneable) or `make_replica`; LibTorch's default random
/// generators are after a clone as they were before it.
///
/// Replicas compute at once, each on a thread that is kept, with the caller's
/// grad mode, autocast, current streams and its device as the current one. The
/// `mixed_precision` of a ddp::DistributedDataParallel around them is an error,
/// and so is a forward of a ddp::SyncBatchNorm in them in a world of several
/// ranks. Random numbers of replicas on the CPU come from LibTorch's one CPU
/// generator in no certain order; a part within ddp::checkpoint_activations may
/// draw none there. They share out the caller's intra-op threads.
/// The backward pass runs where autograd runs it: in one thread a GPU, in the
/// caller's for the CPU. The first device copies the replicas' gradients to
/// itself and adds them up, parameter by parameter; each copy makes the current
/// streams of both GPUs wait for each other, as in torch::nn::parallel.
///
/// Nothing watches the copies between GPUs, which LibTorch makes, by NCCL or
/// without: a GPU that hangs makes the program hang. Under ddprun
/// DistributedDataParallel has a time-out for that.
///
/// The process has one device 0 that holds gathered results, all gradients and
/// the optimizer, and one host; `ddp::DistributedDataParallel` has neither
/// limit and is the better choice for a training of any length.
///
/// Large results burden that device. A forward that takes the targets, too, and
/// returns its mean loss leaves them where they are: with `aggregate(dp::mean)`
/// the result is the mean loss of the batch, in whatever parts it was split
/// (samples/experiments/replicas/loss_in_module.cpp).
///
/// `forward` is a template, as that of torch::nn::Sequential, which is why the
/// wrapper, too, goes into no Sequential and no AnyModule: these need the types
/// of arguments and result. A class that says them goes into both:
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
/// Wrappers do not nest: a replica's inner wrapper would want the devices that
/// the outer one has. Wrap the whole once.
///
/// @throws c10::Error when devices are not there or named twice, when the
///   module cannot be cloned, is not on the first device or has a wrapper
///   inside while there are two devices or more, when inputs do not
///   split alike and results do not fit together. An error in a replica waits
///   for the others and is then thrown on, that of the first replica, with
///   "(replica 1 of 2 on cuda:1)" added; replicas count from 0. The next
///   forward works.
///
/// Thread contract: one thread a model; with two devices or more a forward
/// while another runs, in a second thread or in the module's own forward, is an
/// error. So is one in a process that was forked after the first forward: the
/// replicas' threads are not in it.
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
  using Impl = DataParallelImpl<M>;
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;

  /// `model(x)` is `model->forward(x)`.
  template <typename... Args>
  auto operator()(Args&&... args) {
    return this->get()->forward(std::forward<Args>(args)...);
  }
};

template <typename M>
DataParallel(const torch::nn::ModuleHolder<M>&) -> DataParallel<M>;
template <typename M>
DataParallel(const torch::nn::ModuleHolder<M>&, const DataParallelOptions&)
    -> DataParallel<M>;
template <typename M>
DataParallel(std::shared_ptr<M>) -> DataParallel<M>;
template <typename M>
DataParallel(std::shared_ptr<M>, const DataParallelOptions&) -> DataParallel<M>;

/// One forward of a module on several devices, for a call here and there: the
/// replicas live as long as it takes. In a loop `DataParallel` is faster, since
/// it keeps them.
///
/// Takes what torch::nn::parallel::data_parallel takes. Other than that it
/// runs on any devices, calls the module when there is no GPU, expects the
/// module on the first device instead of copying it there, keeps its buffers
/// (batch norm), and can be differentiated twice.
///
/// Example:
/// @code
///   auto scores = dp::data_parallel(net, images);  // all GPUs
/// @endcode
template <typename ModuleType>
torch::Tensor data_parallel(
    ModuleType module,
    torch::Tensor input,
    std::optional<std::vector<torch::Device>> devices = std::nullopt,
    std::optional<torch::Device> output_device = std::nullopt,
    int64_t dim = 0) {
  DataParallel model(
      std::move(module),
      DataParallelOptions()
          .devices(devices.value_or(std::vector<torch::Device>()))
          .output_device(output_device)
          .dim(dim));
  return model->forward(std::move(input));
}

}  // namespace dp
