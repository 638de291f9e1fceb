#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp {

/// Implementation of `SyncBatchNorm`.
class SyncBatchNormImpl
    : public torch::nn::BatchNormImplBase<0, SyncBatchNormImpl> {
 public:
  /// A process group.
  using Group = c10::intrusive_ptr<c10d::Backend>;

  /// @param options  as torch::nn::BatchNorm; converts from a number of
  ///   channels.
  /// @param group    the ranks; null for the wrapper's group, or without a
  ///   DistributedDataParallel for `ddp::process_group()`.
  /// @throws c10::Error if there is no channel.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             Group group = nullptr);

  /// Replaces `layer`: takes its options, tensors and mode.
  template <size_t D, typename Derived>
  SyncBatchNormImpl(const torch::nn::BatchNormImplBase<D, Derived>& layer,
                    Group group)
      : SyncBatchNormImpl(layer.options, std::move(group)) {
    share(layer.weight,
          layer.bias,
          layer.running_mean,
          layer.running_var,
          layer.num_batches_tracked);
    train(layer.is_training());
  }

  /// Normalises the input; see `SyncBatchNorm` for collectives and errors.
  /// @param input  (batch, channels, ...), of a floating-point type.
  torch::Tensor forward(const torch::Tensor& input);

  /// Sets the group that exchanges statistics from the next forward on, for
  /// example after ranks have left; null for all ranks, `ddp::process_group()`.
  /// Call it between two steps, on all ranks of the group.
  void set_process_group(Group group);
  /// Sets the group of a layer that belongs to a wrapper. Called by
  /// `DistributedDataParallel`.
  void follow_process_group(const Group& group);
  /// Returns true if the layer belongs to a wrapper over `ranks`: the program
  /// has given it no group, or this one.
  bool follows(const Group& ranks) const {
    return !is_given_ || group_ == ranks;
  }

  /// Prints the name of the class and the options.
  void pretty_print(std::ostream& stream) const override;

 protected:
  /// Checks the number of dimensions.
  /// @throws c10::Error for fewer than two dimensions.
  void _check_input_dim(const torch::Tensor& input) override;

 private:
  void share(const torch::Tensor& weight,
             const torch::Tensor& bias,
             const torch::Tensor& running_mean,
             const torch::Tensor& running_var,
             const torch::Tensor& num_batches_tracked);
  Group ranks() const;
  void agree(c10d::Backend& group, const torch::Tensor& input);
  void check_input(const torch::Tensor& input) const;
  double next_factor() const;

  Group group_;
  bool is_given_;  // by the program, not by a wrapper
  torch::Dtype exchanged_ = torch::kFloat;
  bool has_agreed_ = false;
};

/// A batch norm over the batches of all ranks together, for batches that are
/// small on each rank. Corresponds to torch.nn.SyncBatchNorm. For inputs of two
/// or more dimensions, also on the CPU. Batches may have different sizes and
/// may be empty on some ranks.
///
/// In training mode `forward` is collective, also under no_grad, and so is the
/// backward pass if the input needs a gradient: every rank must run both, in
/// the same order. Each of them costs one exchange of two numbers per channel,
/// for which the ranks wait. The input must need a gradient on all ranks or on
/// none, which is not checked. In evaluation mode, in a world of one and
/// without a process group it computes the same as torch::nn::BatchNorm.
/// Without a process group and with WORLD_SIZE above 1, training throws
/// c10::Error. It has the same tensors and names, so checkpoints of the two
/// load into each other.
///
/// float16 and bfloat16 inputs have statistics in float.
///
/// A `DistributedDataParallel` gives layers without a group, or with the
/// wrapper's own, a second group of its ranks, also in `update_process_group`,
/// because the exchange of a bucket of gradients may start before a layer's
/// exchange on one rank and after it on another. The second group has
/// connections of its own and is closed when the job is left. It needs a group
/// of the job: if the wrapper is given a backend that ddp has not made, the
/// layers use that backend, too. Then a rank that leaves out a parameter, by
/// find_unused_parameters or by mistake, may add values of the two exchanges to
/// each other without an error: give the layers a second backend of the same
/// ranks.
///
/// The gradients of weight and bias are averaged like all others.
///
/// @throws c10::Error in training mode, on every rank if the layers of the
///   ranks differ in channels, eps or type of statistics (first forward); other
///   options are not compared. On the CPU also on every rank if all ranks
///   together have only one value per channel. An input of another number of
///   channels, type of statistics or device throws on its own rank; in training
///   mode the other ranks wait until this rank has left. Also throws in a
///   backward pass with
///   create_graph, and in training mode within a `Join` without
///   throw_on_early_termination or in a replica of a `dp::DataParallel` of
///   several devices, if the group has several ranks.
///
/// A batch that is empty on every rank does not change the running mean and
/// variance, but is counted; on GPUs it is not supported. There one value per
/// channel over all ranks is not detected either: the running variance becomes
/// NaN.
///
/// Example:
/// @code
///   torch::nn::Sequential net(torch::nn::Conv2d(1, 8, 3),
///                             ddp::SyncBatchNorm(8));
///   ddp::SyncBatchNorm norm(torch::nn::BatchNormOptions(8).eps(1e-3));
/// @endcode
///
/// Source: torch.nn.SyncBatchNorm.
TORCH_MODULE(SyncBatchNorm);

/// Replaces each torch::nn::BatchNorm1d, 2d and 3d in `module`, at any depth,
/// by a `SyncBatchNorm`. Call it before the module is wrapped. Names, tensors
/// and the mode of each layer are kept, so optimizers and checkpoints remain
/// valid.
///
/// Replaces layers in torch::nn::Sequential, ModuleList and ModuleDict, and
/// children that their parent accesses by name. A layer in a data member of a
/// class cannot be replaced from outside: the function then throws and names
/// the layer. Declare the member as `ddp::SyncBatchNorm` instead, which also
/// works in a single process.
///
/// @param group  the ranks. Null: the ranks of the `DistributedDataParallel`
///   that wraps the module, or else all ranks.
/// @returns the number of places in which a layer was replaced.
/// @throws c10::Error if `module` is a batch norm itself, or if a data member,
///   another parent or a variable of the program holds a layer that is not in
///   one of the three containers. Nothing is changed then. A variable or data
///   member that holds a layer of a container is not detected and keeps the old
///   layer.
///
/// Example:
/// @code
///   torch::nn::Sequential net(torch::nn::Conv2d(1, 8, 3),
///                             torch::nn::BatchNorm2d(8));
///   ddp::convert_sync_batchnorm(*net);
///   ddp::DistributedDataParallel model(net);
/// @endcode
int64_t convert_sync_batchnorm(
    torch::nn::Module& module,
    const c10::intrusive_ptr<c10d::Backend>& group = nullptr);

}  // namespace ddp
