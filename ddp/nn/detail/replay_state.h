#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "ddp/amp/autocast.h"
#include "ddp/tensors/generator_states.h"

namespace ddp::detail {

/// State that a computation depends on besides its arguments and parameters:
/// the default generators and autocast.
class ReplayState {
 public:
  /// Records the current state.
  /// @param near  the generators of these tensors' GPUs are recorded, and
  ///   always the CPU's.
  explicit ReplayState(const std::vector<at::Tensor>& near);

  /// Call after the first computation: forgets the generators that it has not
  /// drawn from. A replay leaves these alone, since another thread may draw
  /// from them.
  /// @param has_drawn_on_cpu  whether the computation drew from the CPU's
  ///   generator. A changed state is no proof there, since another thread may
  ///   have changed it. A changed state of a GPU's generator counts as drawn.
  void forget_unused_generators(bool has_drawn_on_cpu);

  /// Returns true if a replay draws from the CPU's generator.
  bool draws_on_cpu() const { return cpu_after_.has_value(); }

  /// Call after the replay, while its `Draws` still exists. Returns true if the
  /// CPU's generator is in the same state as after the first computation.
  /// Otherwise another thread has drawn from it during one of the two
  /// computations.
  bool has_drawn_the_same() const {
    return !cpu_after_ || cpu_after_->are_current();
  }

  /// Sets the recorded autocast during its lifetime, and restores the previous
  /// one.
  class Scope;

  /// Sets the generators to the recorded states during its lifetime, and
  /// restores their previous states. Only one replay at a time draws from the
  /// CPU's generator, which the threads of a backward pass over several GPUs
  /// share; a replay on another thread waits. A replay within a replay (of a
  /// part that computes gradients itself) does not wait.
  class Draws;

 private:
  struct Autocast {
    c10::DeviceType device_type;
    bool is_enabled;
    c10::ScalarType dtype;
  };

  GeneratorStates generators_;
  /// State after the first computation, if it has drawn on the CPU.
  std::optional<GeneratorStates> cpu_after_;
  std::vector<Autocast> autocasts_;
};

class ReplayState::Scope {
 public:
  explicit Scope(const ReplayState& state);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::vector<std::unique_ptr<AutocastGuard>> guards_;
};

class ReplayState::Draws {
 public:
  explicit Draws(const ReplayState& state);
  ~Draws();
  Draws(const Draws&) = delete;
  Draws& operator=(const Draws&) = delete;

 private:
  std::unique_lock<std::recursive_mutex> cpu_;
  GeneratorStates before_;
};

/// Marks that this thread computes a segment, during its lifetime. Autocast
/// makes narrow copies of parameters for the segment alone, since they are part
/// of its graph.
class SegmentScope {
 public:
  SegmentScope();
  ~SegmentScope();
  SegmentScope(const SegmentScope&) = delete;
  SegmentScope& operator=(const SegmentScope&) = delete;

  /// Returns true if an object of this class lives on this thread.
  static bool is_entered();

 private:
  bool caches_casts_;
};

}  // namespace ddp::detail
