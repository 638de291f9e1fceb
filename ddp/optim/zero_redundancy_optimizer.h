#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/join.h"
#include "ddp/optim/detail/owned_parameters.h"
#include "ddp/optim/detail/pieces.h"

namespace ddp {

/// How a ZeroRedundancyOptimizer splits the state over p ranks.
enum class ZeroPartition {
  /// Whole parameters, by size, the largest first, each to the rank that has
  /// least, as PyTorch does. For any optimizer that steps each parameter by
  /// itself. One that is larger than the rest together leaves a rank with more.
  parameter,
  /// The parameters of a group and dtype lie end to end, and each rank has a
  /// run of them: 1/p of all elements, up to 63 more, whatever the parameters'
  /// sizes. For SGD, Adam, AdamW, RMSprop, Adagrad, and fused ones, which step
  /// each element by itself; for dense gradients, and parameters without gaps
  /// in their memory.
  bucket,
};

/// Options of `ZeroRedundancyOptimizer`; the same on all ranks.
///
/// Example:
/// @code
///   ddp::ZeroRedundancyOptimizer optimizer(
///       model->parameters(),
///       [](auto groups) {
///         return std::make_unique<torch::optim::Adam>(groups);
///       },
///       ddp::ZeroRedundancyOptimizerOptions().partition(
///           ddp::ZeroPartition::bucket));
/// @endcode
struct ZeroRedundancyOptimizerOptions {
  ZeroRedundancyOptimizerOptions(  // NOLINT
      c10::intrusive_ptr<c10d::Backend> process_group = nullptr)
      : process_group_(std::move(process_group)) {}

  /// Null: all ranks.
  TORCH_ARG(c10::intrusive_ptr<c10d::Backend>, process_group);
  TORCH_ARG(ZeroPartition, partition) = ZeroPartition::parameter;
};

/// An optimizer whose state is split over the ranks: each steps its part of the
/// parameters and broadcasts them, so with p ranks the state of Adam costs each
/// of them 1/p of the memory. PyTorch's ZeroRedundancyOptimizer, ZeRO's first
/// stage.
///
/// The parameters end up the same bit for bit as by the optimizer alone on all
/// of them; cut by bucket, on the CPU with one intra-op thread (`ddprun` sets
/// OMP_NUM_THREADS=1), for how LibTorch rounds there depends on where its
/// threads divide a tensor.
///
/// The gradients must be the same on all ranks, as those of
/// `DistributedDataParallel` are. So what looks at all of them is right as it
/// is, on `parameters()` or `param_groups()`, which hold all parameters:
/// `clip_grad_norm_`, `GradScaler`, zero_grad(). Set options there, too
/// (schedulers do); the next step has them.
///
/// A step sends the bytes of the parameters once, by broadcasts of those that
/// stepped. Large parameters are sent from where they lie, small ones together.
///
/// In a `Join` it is one of the joinables, `Join({*model, optimizer})`: a rank
/// without inputs makes the plain step of its part with the others. What the
/// loop does around `step()` is not made there: gradients that the loop clips
/// are not clipped on that rank, and a learning rate that the loop changes
/// stays that of the rank's last input, so its part of the parameters is
/// stepped otherwise than the rest. A program with either leaves the optimizer
/// out of the Join and gives `finish` a function that clips, steps and changes
/// the rate as the loop does. With a `GradScaler` the optimizer has to be left
/// out, too.
///
/// Parameters that the model's `params_and_buffers_to_ignore` names are each
/// rank's own, and refused: step them by another optimizer.
///
/// Peak of host memory: `consolidate`, by which `ddp::Checkpoint` saves, holds
/// the whole state on one rank and one rank's part of it, as bytes, on every
/// rank; loading a checkpoint holds the whole state on every rank.
///
/// Thread contract: one thread a rank; the constructor, `step`,
/// `add_param_group` and `consolidate` are collective.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(net);
///   ddp::ZeroRedundancyOptimizer optimizer(
///       model->parameters(), [](auto groups) {
///         return std::make_unique<torch::optim::AdamW>(
///             groups, torch::optim::AdamWOptions(3e-4));
///       });
///   ...
///   optimizer.step();
///   ...
///   ddp::Checkpoint checkpoint(net);
///   checkpoint.optimizer(optimizer).save("last.pt");  // the whole state
/// @endcode
///
/// Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
/// Trillion Parameter Models", SC 2020;
/// torch/distributed/optim/zero_redundancy_optimizer.py of PyTorch 2.11.
class ZeroRedundancyOptimizer : public torch::optim::Optimizer,
                                public Joinable {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  /// Makes the optimizer over some of the parameters, always of one kind and
  /// with the same defaults. As many groups as given to the constructor; some
  /// may be empty.
  using Factory =
      std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;

  /// @param options  a process group alone will do.
  /// @throws c10::Error on every rank, with the parameter's place, when the
  ///   ranks' parameters differ, or a wrapper has one among its
  ///   `params_and_buffers_to_ignore`; when there are none, they lie on several
  ///   devices, the optimizer is LBFGS, which steps all at once, or the
  ///   partition is not for them.
  ZeroRedundancyOptimizer(std::vector<torch::Tensor> parameters,
                          Factory make,
                          const ZeroRedundancyOptimizerOptions& options = {});
  ZeroRedundancyOptimizer(const Groups& groups,
                          Factory make,
                          const ZeroRedundancyOptimizerOptions& options = {});

  /// Steps this rank's parameters and brings all to all ranks.
  /// @param closure  called once, on every rank.
  /// @throws c10::Error where a rank's part cannot step (Adam with a sparse
  ///   gradient); in a group of the job the other ranks hear of it at once. By
  ///   bucket for a sparse gradient, on every rank alike, which can go on.
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// In the place of LibTorch's, on every rank. As the constructor.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// The optimizer over all parameters with the whole state and the options,
  /// on rank `to`; null on the others. To save, by `torch::save` or otherwise:
  /// it is of the kind that the factory makes, a copy, its state on the CPU.
  /// @throws c10::Error when the optimizer's `save` does not write its state.
  std::unique_ptr<torch::optim::Optimizer> consolidate(int to = 0) const;

  /// An optimizer over all parameters without state: `torch::load` into it,
  /// then give it to `take`.
  std::unique_ptr<torch::optim::Optimizer> make_whole() const;

  /// Takes options and this rank's part of the state from an optimizer over all
  /// parameters, of whatever number of ranks it was saved by. Every rank gives
  /// the same. Not collective.
  /// @throws c10::Error when it has other groups, is of another kind, or by
  ///   bucket when a state has another shape than its parameter.
  void take(const torch::optim::Optimizer& whole);

  /// That of this rank's part. Its `state()` is what this rank keeps; that of
  /// this object is empty. By bucket its parameters are tensors of one
  /// dimension over the memory of what it steps.
  const torch::optim::Optimizer& local() const { return *local_; }

  /// The rank that steps each parameter of each group; by bucket, its first
  /// element.
  const std::vector<std::vector<int>>& owners() const { return owners_; }

  /// A part of the state would be lost. @throws c10::Error always: save what
  /// `consolidate` gives, load what `take` gets.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// For `Join`.
  std::string join_name() const override { return "ZeroRedundancyOptimizer"; }
  c10::intrusive_ptr<c10d::Backend> join_group() const override {
    return group_;
  }
  c10::Device join_device() const override;
  void take_part(const JoinTurn& /*turn*/) override { step_with_peers(); }
  /// All ranks have stepped each time.
  void end_join(int /*source*/) override {}

 private:
  void step_with_peers();
  int rank() const;
  int size() const;
  void give_out(const Groups& groups);
  Groups part_of(const Groups& groups, size_t first, int rank) const;
  void check_groups() const;

  Factory make_;
  c10::intrusive_ptr<c10d::Backend> group_;  // null in a world of one
  ZeroPartition partition_;
  std::vector<std::vector<int>> owners_;                     // by group
  std::vector<std::vector<detail::ParameterShard>> pieces_;  // by group
  std::vector<int64_t> elements_;  // that each rank has been given
  std::vector<detail::OwnedParameters> messages_;
  std::unique_ptr<torch::optim::Optimizer> local_;
};

}  // namespace ddp
