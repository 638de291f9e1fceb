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
#include "ddp/tensors/parameter_casts.h"

namespace ddp::detail {

/// What a computation depends on beside its arguments and its parameters: the
/// default generators, autocast and the dtype that parameters are cast to.
class ReplayState {
 public:
  /// As it is now.
  /// @param near  tensors on the devices whose generators may be asked; the
  ///   CPU's always is.
  explicit ReplayState(const std::vector<at::Tensor>& near);

  /// After the first computation: forgets the generators that it has not drawn
  /// from. A replay leaves them alone, since another thread may draw from them.
  /// @param has_drawn_on_cpu  the state alone does not tell: another thread may
  ///   have changed it.
  void forget_unused_generators(bool has_drawn_on_cpu);

  /// Whether a replay draws from the CPU's generator.
  bool draws_on_cpu() const { return cpu_after_.has_value(); }

  /// After the replay: whether the CPU's generator is where the first
  /// computation left it. If not, another thread has drawn from it during one
  /// of them.
  bool has_drawn_the_same() const {
    return !cpu_after_ || cpu_after_->are_current();
  }

  /// While it lives, autocast and casts are those; then what they were before.
  /// Narrow copies of parameters are not shared with what is outside.
  class Scope;

  /// While it lives, the generators are in the noted states; then in those that
  /// they had before. One replay at a time draws from the CPU's generator,
  /// which the threads of a backward pass over several GPUs share: another
  /// thread's waits. A replay within a replay, of a part that computes
  /// gradients itself, does not.
  class Draws;

 private:
  struct Autocast {
    c10::DeviceType device_type;
    bool is_enabled;
    c10::ScalarType dtype;
  };

  GeneratorStates generators_;
  /// After the first computation, where that has drawn.
  std::optional<GeneratorStates> cpu_after_;
  std::vector<Autocast> autocasts_;
  std::vector<ParameterCastsPtr> casts_ = CastScope::active();
};

class ReplayState::Scope {
 public:
  explicit Scope(const ReplayState& state);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::vector<std::unique_ptr<AutocastGuard>> guards_;
  std::optional<CastScope> casts_;
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

/// While it lives, a segment's own computation runs on this thread: casts of
/// parameters are made for it alone, since they are a part of its graph.
class SegmentScope {
 public:
  SegmentScope();
  ~SegmentScope();
  SegmentScope(const SegmentScope&) = delete;
  SegmentScope& operator=(const SegmentScope&) = delete;

  /// Whether one lives on this thread.
  static bool is_entered();

 private:
  bool caches_casts_;
  std::optional<CastScope> casts_;
};

}  // namespace ddp::detail
