#pragma once

#include <ATen/core/ivalue.h>

namespace ddp {

/// Selects the ranks that contribute values to a `Checkpoint`.
enum class CheckpointScope {
  /// Rank 0's value, which all ranks load.
  common,
  /// Each rank's own value, as a list by rank. The same number of ranks loads
  /// it.
  per_rank,
  /// As `per_rank`, for any number of ranks: each rank loads the value of its
  /// rank modulo the number of saved values.
  per_rank_modulo,
};

/// An object with a state that a `Checkpoint` saves and loads. Corresponds to
/// PyTorch's torch.distributed.checkpoint.stateful.Stateful.
/// `ZeroRedundancyOptimizer`, `ModelAverager`, `GradScaler`,
/// `DistributedSampler` and `Exchange` implement it; a class of the program
/// may, too. `Checkpoint::add` takes these objects, and modules, LibTorch's
/// optimizers and variables as they are.
///
/// A state is a value that Python's torch.load can read: None, bool, int,
/// float, complex, str, a dense tensor, and dicts, lists and tuples of these.
///
/// Thread contract: the thread that calls `Checkpoint::save` and `load`.
///
/// Example:
/// @code
///   class MeanLoss : public ddp::Stateful {
///    public:
///     c10::IValue state_dict() const override { return mean_; }
///     void check_state_dict(const c10::IValue& state) const override {
///       TORCH_CHECK(state.isDouble(),
///                   "expected a float, but got ",
///                   state.tagKind());
///     }
///     void load_state_dict(const c10::IValue& state) override {
///       mean_ = state.toDouble();
///     }
///
///    private:
///     double mean_ = 0;
///   };
///
///   MeanLoss loss;
///   checkpoint.add("loss", loss);
/// @endcode
class Stateful {
 public:
  virtual ~Stateful() = default;

  /// Returns the state to save. Its tensors may share memory with the object;
  /// they are written or copied before `save` returns. Every rank calls this
  /// function, in the order of the entries, also after an exception of another
  /// entry; so it may communicate. Only rank 0's result is used, unless
  /// `checkpoint_scope` says otherwise.
  virtual c10::IValue state_dict() const = 0;

  /// Throws a c10::Error if `load_state_dict` would throw for this state, and
  /// changes nothing. May not communicate.
  virtual void check_state_dict(const c10::IValue& state) const = 0;

  /// Continues from a state. `Checkpoint::load` calls this function after
  /// `check_state_dict` has accepted the states of all entries on all ranks.
  /// @throws c10::Error if the state does not fit.
  virtual void load_state_dict(const c10::IValue& state) = 0;

  /// Selects the ranks that save their states.
  virtual CheckpointScope checkpoint_scope() const {
    return CheckpointScope::common;
  }
};

}  // namespace ddp
