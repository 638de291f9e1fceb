#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/checkpoint/state/stateful.h"
#include "ddp/job/join.h"

namespace ddp {

/// An optimizer that splits its state over the ranks: each parameter belongs to
/// one rank, which steps it and broadcasts the result. With p ranks the state
/// of Adam costs each rank about 1/p of the memory. Corresponds to PyTorch's
/// ZeroRedundancyOptimizer, the first stage of ZeRO.
///
/// Parameters are assigned to ranks as in PyTorch: group by group, the largest
/// parameter of a group first, each to the rank with the fewest elements so
/// far. A rank with one very large parameter therefore keeps more than 1/p of
/// the state.
///
/// Works with any optimizer that steps each parameter independently. The
/// parameters equal bit for bit the result of a step of the plain optimizer
/// over all of them.
///
/// The gradients must be the same on all ranks, as `DistributedDataParallel`
/// makes them. `param_groups()` holds all parameters, so `GradScaler` and
/// zero_grad() work unchanged. LibTorch's `parameters()` returns only the first
/// group: give `clip_grad_norm_` the model's parameters. Set options in
/// `param_groups()`, as schedulers do; the next step uses them.
///
/// A step sends the bytes of the parameters once, by broadcasts of the stepped
/// parameters. Parameters of one rank and dtype travel together, in messages of
/// about 250 MB at most.
///
/// In a `Join` the optimizer must be one of the joinables,
/// `Join({*model, optimizer})`: a rank without inputs makes the plain step of
/// its parameters with the other ranks. That rank does not repeat other work of
/// the loop around `step()`: it does not clip gradients, and its learning rate
/// stays that of its last input, so its parameters are stepped differently from
/// the rest.
///
/// Parameters named in the model's `params_and_buffers_to_ignore` differ
/// between the ranks. With several ranks the constructor, `add_param_group` and
/// `step` refuse them: step them with another optimizer.
///
/// Peak of memory: `state_dict`, which `ddp::Checkpoint` calls to save, holds
/// in host memory the whole state on rank 0 and, as bytes, up to three copies
/// of one rank's part on every rank. Loading a checkpoint copies each rank's
/// part alone.
///
/// Thread contract: one thread per rank. The constructor, `step`,
/// `add_param_group` and `state_dict` are collective, the others are not.
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
///   checkpoint.add("optimizer", optimizer).save("last.pt");  // whole state
/// @endcode
///
/// Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
/// Trillion Parameter Models", SC 2020;
/// torch/distributed/optim/zero_redundancy_optimizer.py of PyTorch 2.11.
class ZeroRedundancyOptimizer : public torch::optim::Optimizer,
                                public Joinable,
                                public Stateful {
 public:
  /// Parameters and their options, by group.
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  /// Creates the optimizer over some of the parameters, always of one class and
  /// with the same defaults. The constructor calls it with one group for each
  /// group of this optimizer; some may be empty.
  using Factory =
      std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;

  /// @param process_group  the ranks; null for all ranks.
  /// @throws c10::Error on every rank, with the parameter's group and index, if
  ///   the ranks' parameters differ or a wrapper lists one of them in its
  ///   `params_and_buffers_to_ignore`. Also if there are no parameters, one is
  ///   listed twice, they share memory or lie on several devices, the factory
  ///   makes none or an LBFGS (which steps all parameters together), or there
  ///   is no process group although WORLD_SIZE is above 1. The ranks compare
  ///   number, groups, shape, strides, dtype and requires_grad of the
  ///   parameters, but no values. If the factory fails on one rank only, the
  ///   constructors of the other ranks return.
  ZeroRedundancyOptimizer(
      std::vector<torch::Tensor> parameters,
      const Factory& make,
      const c10::intrusive_ptr<c10d::Backend>& process_group = nullptr);
  /// As above, for groups with options of their own.
  ZeroRedundancyOptimizer(
      const Groups& groups,
      const Factory& make,
      const c10::intrusive_ptr<c10d::Backend>& process_group = nullptr);

  /// Steps this rank's parameters and broadcasts them to all ranks. Collective.
  /// @param closure  called once, on every rank.
  /// @returns the closure's loss; undefined without a closure.
  /// @throws c10::Error if a rank cannot step its parameters (Adam with a
  ///   sparse gradient); a group of `init_process_group` or `new_group` is then
  ///   aborted, so that the other ranks fail at once, with NCCL in their next
  ///   collective. An exception of the closure aborts nothing: the other ranks
  ///   wait.
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// Adds a group. Replaces LibTorch's function of this name; call it on every
  /// rank. The parameters of the other groups keep their ranks and their state.
  /// After a call of LibTorch's function (through an `Optimizer&`) the next
  /// `step` throws c10::Error. Throws as the constructor, but a group may be
  /// empty.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Gathers the whole state. Collective. Returns it on rank 0, as that of the
  /// plain optimizer over all parameters, with tensors on the CPU, and None on
  /// the other ranks.
  /// @throws c10::Error for an optimizer other than LibTorch's SGD, Adam,
  ///   AdamW, RMSprop and Adagrad.
  c10::IValue state_dict() const override;
  /// @throws c10::Error if the state is not one of the plain optimizer with the
  ///   same groups, or does not fit a parameter of this rank.
  void check_state_dict(const c10::IValue& state) const override;
  /// Continues from a whole state, which any number of ranks may have saved.
  /// Pass the same state on every rank.
  void load_state_dict(const c10::IValue& state) override;

  /// Returns the optimizer of this rank's parameters. Its `state()` is the
  /// state that this rank keeps; the `state()` of this object is empty.
  const torch::optim::Optimizer& local() const { return *local_; }

  /// Returns the rank that steps each parameter, by group and by parameter.
  const std::vector<std::vector<int>>& owners() const { return owners_; }

  /// Unsupported, since only a part of the state would be saved or loaded.
  /// @throws c10::Error always: use `Checkpoint`.
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
  void step_with_peers();
  c10::IValue part_of(const c10::IValue& whole) const;
  int rank() const;
  int size() const;
  void assign_parameters(const Groups& groups);
  void check_groups() const;

  c10::intrusive_ptr<c10d::Backend> group_;  // null in a world of one
  std::vector<std::vector<int>> owners_;     // by group and parameter
  std::vector<int64_t> elements_;            // number assigned to each rank
  std::unique_ptr<torch::optim::Optimizer> local_;
};

}  // namespace ddp
