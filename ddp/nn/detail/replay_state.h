#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "ddp/amp/autocast.h"

namespace ddp::detail {

/// State that a computation depends on besides its arguments and parameters:
/// the default generators and autocast. Both computations make narrow copies of
/// parameters for themselves instead of taking them from autocast's cache,
/// since these copies are part of their graph.
class ReplayState {
 public:
  using Computation = std::function<std::vector<at::Tensor>()>;

  /// Records the current state.
  /// @param near  the generators of these tensors' GPUs are recorded, and
  ///   always the CPU's.
  explicit ReplayState(const std::vector<at::Tensor>& near);

  /// Computes for the first time, in the recorded state. Forgets the generators
  /// that the computation has not drawn from: a replay does not change them,
  /// because another thread may draw from them. A changed state of a GPU's
  /// generator counts as drawn. On the CPU the operators that draw are counted,
  /// because another thread may have changed the state.
  std::vector<at::Tensor> run_first(const Computation& compute);

  /// Returns true if the first computation has drawn from the CPU's generator.
  bool draws_on_cpu() const { return cpu_after_.defined(); }

  /// Computes again in the recorded state, and restores the present state. Only
  /// one replay at a time draws from the CPU's generator, which the threads of
  /// a backward pass over several GPUs share; a replay on another thread waits.
  /// A replay within a replay (of a part that computes gradients itself) does
  /// not wait.
  /// @throws c10::Error if another thread has drawn from the CPU's generator
  ///   during one of the two computations.
  std::vector<at::Tensor> run_again(const Computation& compute) const;

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> generators_;
  at::Tensor cpu_after_;  // after the first computation, if that has drawn
  AutocastOptions cpu_autocast_;
  AutocastOptions cuda_autocast_;
};

}  // namespace ddp::detail
