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

/// The module behind `SyncBatchNorm`; see there.
class SyncBatchNormImpl
    : public torch::nn::BatchNormImplBase<0, SyncBatchNormImpl> {
 public:
  using Group = c10::intrusive_ptr<c10d::Backend>;

  /// @param options  torch::nn::BatchNorm's; a number of channels will do.
  /// @param group  the ranks; null for the wrapper's, or without a
  ///   DistributedDataParallel `ddp::process_group()`.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             Group group = nullptr);

  /// In the place of `layer`: the same options, tensors and mode.
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

  /// @param input  (batch, channels, ...), of a floating-point type.
  torch::Tensor forward(const torch::Tensor& input);

  /// Exchanges statistics in this group from the next forward on, for instance
  /// when ranks have gone; null for all, `ddp::process_group()`. Between two
  /// steps, on all its ranks.
  void set_process_group(Group group);
  /// For `DistributedDataParallel`: the group of the wrapper, where none was
  /// given to this layer.
  void follow_process_group(const Group& group);

  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const torch::Tensor& input) override;

 private:
  void share(const torch::Tensor& weight,
             const torch::Tensor& bias,
             const torch::Tensor& running_mean,
             const torch::Tensor& running_var,
             const torch::Tensor& num_batches_tracked);
  Group ranks() const;
  void agree(c10d::Backend& group, const torch::Tensor& input);
  std::string problem_of(const torch::Tensor& input) const;
  double next_factor() const;

  Group group_;
  bool is_given_;  // by the program, not by a wrapper
  torch::Dtype exchanged_ = torch::kFloat;
  bool has_agreed_ = false;
};

/// A batch norm whose statistics are those of the batches of all ranks
/// together, for batches that are small on each rank: what
/// torch.nn.SyncBatchNorm is. For inputs of two dimensions and more, on the CPU
/// too. Batches may be of different sizes, also empty on some ranks.
///
/// In training mode `forward` is collective, under no_grad too, and so is the
/// backward pass where the input needs a gradient: every rank makes both, in
/// the same order. Each costs one exchange of two numbers a channel, for which
/// the ranks wait. In evaluation, in a world of one and without a process group
/// it is torch::nn::BatchNorm, whose tensors and names it has: a checkpoint of
/// one loads into the other.
///
/// float16 and bfloat16 inputs have statistics in float.
///
/// A `DistributedDataParallel` gives its group to layers that have none of
/// their own, also by `update_process_group`.
///
/// Under `DistributedDataParallel` gradients of weight and bias are averaged
/// like all others. Where ranks may use different parameters
/// (find_unused_parameters), give these layers a group of their own
/// (`ddp::new_group`): gradients then start on their way at different places of
/// the ranks' passes.
///
/// @throws c10::Error on every rank when the layers of the ranks differ (first
///   forward), when an input has another number of channels or type on one of
///   them, naming it, and when there is one value a channel on all ranks
///   together. On a GPU, where looking would stall the host, an input that does
///   not fit throws on its own rank; its part is left out on the others. No
///   error makes other ranks wait. Also by a backward pass with create_graph.
///
/// A batch that is empty on every rank leaves the running statistics as they
/// are; on GPUs do not give one.
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

/// Puts a `SyncBatchNorm` into the place of each torch::nn::BatchNorm1d, 2d and
/// 3d in `module`, at any depth, before it is wrapped. Names, tensors and the
/// mode of each layer stay, so optimizers and checkpoints need not know.
///
/// Replaces what torch::nn::Sequential, ModuleList and ModuleDict hold, and
/// children that their parent finds by name. A layer that a class holds as a
/// member of its type cannot be replaced from outside: that is an error, which
/// names the layer. Declare the member as `ddp::SyncBatchNorm` instead; it
/// serves alone, too.
///
/// @param group  the ranks; null for all.
/// @returns how many layers it has replaced.
/// @throws c10::Error when `module` is such a layer itself, or holds one as a
///   member; then nothing has changed.
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
