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

/// The way in which a ZeroRedundancyOptimizer splits the state over p ranks.
enum class ZeroPartition {
  /// Assigns whole parameters, the largest first, each to the rank with the
  /// fewest elements so far, as PyTorch does. For any optimizer that steps each
  /// parameter independently. If one parameter is larger than all others
  /// together, its rank has more than 1/p of the state.
  parameter,
  /// Places the parameters of a group and dtype end to end and assigns each
  /// rank a contiguous range: 1/p of all elements, up to 63 more, whatever the
  /// parameters' sizes. For SGD, Adam, AdamW, RMSprop, Adagrad and the fused
  /// optimizers, and for a class derived from one of these if it steps each
  /// element independently, which is not checked. Requires dense gradients, and
  /// parameters without gaps in their memory.
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
  /// @param process_group  the ranks; null for all ranks.
  ZeroRedundancyOptimizerOptions(  // NOLINT
      c10::intrusive_ptr<c10d::Backend> process_group = nullptr)
      : process_group_(std::move(process_group)) {}

  /// The ranks; null for all ranks.
  TORCH_ARG(c10::intrusive_ptr<c10d::Backend>, process_group);
  /// The way in which the state is split.
  TORCH_ARG(ZeroPartition, partition) = ZeroPartition::parameter;
};

/// An optimizer whose state is split over the ranks: each rank steps its part
/// of the parameters and broadcasts it. With p ranks the state of Adam costs
/// each rank 1/p of the memory. Corresponds to PyTorch's
/// ZeroRedundancyOptimizer, the first stage of ZeRO.
///
/// The parameters are equal bit for bit to a step of the plain optimizer over
/// all of them. With ZeroPartition::bucket on the CPU this needs one intra-op
/// thread (`ddprun` sets OMP_NUM_THREADS=1 for several ranks of a host, if it
/// is unset), because LibTorch's rounding there depends on where its threads
/// divide a tensor.
///
/// The gradients must be the same on all ranks, as `DistributedDataParallel`
/// makes them. `param_groups()` holds all parameters, so `GradScaler` and
/// zero_grad() work unchanged. LibTorch's `parameters()` returns only the first
/// group: give `clip_grad_norm_` the model's parameters. Set options in
/// `param_groups()`, as schedulers do; the next step uses them.
///
/// A step sends the bytes of the parameters once, by broadcasts of the stepped
/// parameters. Large parameters are sent from their own memory, small ones of
/// one rank and dtype together in one message.
///
/// In a `Join` the optimizer is one of the joinables,
/// `Join({*model, optimizer})`: a rank without inputs makes the plain step of
/// its part with the other ranks. That rank does not repeat other work of the
/// loop around `step()`: it does not clip gradients, and its learning rate
/// stays that of its last input, so its part of the parameters is stepped
/// differently from the rest. A program that clips or changes the learning rate
/// leaves the optimizer out of the Join and gives `finish` a function that
/// clips, steps and changes the rate as the loop does. With a `GradScaler` the
/// optimizer has to be left out, too.
///
/// Parameters named in the model's `params_and_buffers_to_ignore` differ
/// between the ranks. With several ranks the constructor, `add_param_group` and
/// `step` refuse them: step them with another optimizer.
///
/// Peak of memory: `consolidate`, which `ddp::Checkpoint` calls to save, holds
/// in host memory the whole state on one rank and, as bytes, up to three copies
/// of one rank's part on every rank. Loading a checkpoint holds the whole state
/// on every rank, in host memory and on the device of the parameters;
/// `torch::load` of a file of `consolidate` into `make_whole()` needs host
/// memory alone (except for Adagrad).
///
/// Thread contract: one thread per rank. The constructor, `step`,
/// `add_param_group` and `consolidate` are collective, the others are not.
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
  /// Parameters and their options, by group.
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  /// Creates the optimizer over some of the parameters, always of one class and
  /// with the same defaults. The constructor, `consolidate`, `make_whole` and
  /// `take` call it with one group for each group of this optimizer; some may
  /// be empty.
  using Factory =
      std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;

  /// @param options  converts from a process group.
  /// @throws c10::Error on every rank, with the parameter's group and index, if
  ///   the ranks' parameters differ or a wrapper lists one of them in its
  ///   `params_and_buffers_to_ignore`. Also if there are no parameters, one is
  ///   listed twice, they lie on several devices, the factory makes none or an
  ///   LBFGS (which steps all parameters together), the partition does not
  ///   support the optimizer or the parameters, the ranks' partitions differ,
  ///   or there is no process group although WORLD_SIZE is above 1. The ranks
  ///   compare number, groups, shape, strides, dtype and requires_grad of the
  ///   parameters, but no values. If the factory fails on one rank only,
  ///   the constructors of the other ranks return.
  ZeroRedundancyOptimizer(std::vector<torch::Tensor> parameters,
                          Factory make,
                          const ZeroRedundancyOptimizerOptions& options = {});
  /// As above, for groups with options of their own.
  ZeroRedundancyOptimizer(const Groups& groups,
                          Factory make,
                          const ZeroRedundancyOptimizerOptions& options = {});

  /// Steps this rank's part and broadcasts the stepped parameters to all ranks.
  /// Collective.
  /// @param closure  called once, on every rank.
  /// @returns the closure's loss; undefined without a closure.
  /// @throws c10::Error if a rank's part cannot step (Adam with a sparse
  ///   gradient; with ZeroPartition::bucket any sparse gradient, or a parameter
  ///   whose dtype or device has changed since its group was added); a group of
  ///   `init_process_group` or `new_group` is then aborted, so that the other
  ///   ranks fail at once, with NCCL in their next collective. An exception of
  ///   the closure aborts nothing: the other ranks wait.
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// Adds a group. Replaces LibTorch's function of this name; call it on every
  /// rank. The parameters of the other groups keep their ranks and their state.
  /// After a call of LibTorch's function (through an `Optimizer&`) the next
  /// `step` throws c10::Error. Throws as the constructor, but a group may be
  /// empty.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Gathers the whole state. Collective.
  /// @param to  the rank that gets the result.
  /// @returns an optimizer over all parameters with the whole state and the
  ///   options on rank `to`, null on the other ranks. It is a copy of the class
  ///   that the factory makes, with its state on the CPU; save it, for example
  ///   with `torch::save`.
  /// @throws c10::Error if `to` is no rank of the group; on rank `to` if the
  ///   optimizer's `save` does not write its state. If the optimizer's `save`
  ///   or the factory throws, or the state was not written, the group is
  ///   aborted as in `step`.
  std::unique_ptr<torch::optim::Optimizer> consolidate(int to = 0) const;

  /// Creates an optimizer over all parameters with the options of the present
  /// groups and the state of a new optimizer (none, except for Adagrad). To
  /// load a saved state, `torch::load` into it and pass it to `take`.
  std::unique_ptr<torch::optim::Optimizer> make_whole() const;

  /// Copies the options and this rank's part of the state from an optimizer
  /// over all parameters, which any number of ranks may have saved. Pass the
  /// same optimizer on every rank. Not collective.
  /// @throws c10::Error if it has another number of groups or of parameters in
  ///   a group, or options of another class (a fused optimizer has those of the
  ///   plain one), or with ZeroPartition::bucket if a state has another shape
  ///   than its parameter. ZeroPartition::parameter compares no shapes.
  void take(const torch::optim::Optimizer& whole);

  /// Returns the optimizer of this rank's part. Its `state()` is the state that
  /// this rank keeps; the `state()` of this object is empty. With
  /// ZeroPartition::bucket its parameters are one-dimensional tensors over the
  /// memory that it steps. The reference is valid until `take`, which
  /// `Checkpoint::load` calls.
  const torch::optim::Optimizer& local() const { return *local_; }

  /// Returns the rank that steps each parameter of each group; with
  /// ZeroPartition::bucket, the rank that steps its first element.
  const std::vector<std::vector<int>>& owners() const { return owners_; }

  /// Unsupported, since only a part of the state would be saved or loaded.
  /// @throws c10::Error always: save the result of `consolidate`, load by
  ///   `take`.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Throws, as `save`.
  void load(torch::serialize::InputArchive& archive) override;

  /// The functions of `Joinable`.
  std::string join_name() const override { return "ZeroRedundancyOptimizer"; }
  c10::intrusive_ptr<c10d::Backend> join_group() const override {
    return group_;
  }
  /// Returns the GPU of the parameters with NCCL, else the CPU.
  c10::Device join_device() const override;
  void take_part(const JoinTurn& /*turn*/) override { step_with_peers(); }
  /// Does nothing: all ranks have made every step.
  void end_join(int /*source*/) override {}

 private:
  template <class Function>
  auto abort_on_error(const Function& function) const;
  void step_with_peers();
  std::unique_ptr<torch::optim::Optimizer> gather_state(int to) const;
  std::unique_ptr<torch::optim::Optimizer> make_again(
      const Groups& groups) const;
  int rank() const;
  int size() const;
  void assign_parameters(const Groups& groups);
  Groups groups_of_rank(const Groups& groups, size_t first, int rank) const;
  void check_groups() const;

  Factory make_;
  c10::intrusive_ptr<c10d::Backend> group_;  // null in a world of one
  ZeroPartition partition_;
  std::vector<std::vector<int>> owners_;                     // by group
  std::vector<std::vector<detail::ParameterShard>> pieces_;  // by group
  std::vector<int64_t> elements_;  // number assigned to each rank
  std::vector<detail::OwnedParameters> messages_;
  std::unique_ptr<torch::optim::Optimizer> local_;
};

}  // namespace ddp
