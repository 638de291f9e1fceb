#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp {

/// Brings the ranks' parameters together every few steps of the optimizer,
/// instead of their gradients in each: `PeriodicModelAverager`,
/// `HierarchicalModelAverager`, `DiLoCo`. A `PostLocalSGDOptimizer` calls one.
///
/// Example:
/// @code
///   std::unique_ptr<ddp::ModelAverager> averager =
///       std::make_unique<ddp::PeriodicModelAverager>(
///           ddp::PeriodicModelAveragerOptions(4));
///   optimizer.step();
///   averager->average_parameters(model->parameters());
/// @endcode
class ModelAverager {
 public:
  virtual ~ModelAverager() = default;

  /// To be called after each step of the optimizer, on every rank. Says whether
  /// parameters have been brought together, in place; that is collective. Only
  /// those that require a gradient are.
  /// @throws c10::Error when a rank has left.
  virtual bool average_parameters(
      const std::vector<at::Tensor>& parameters) = 0;

  /// Calls so far; for a checkpoint.
  virtual int64_t steps() const = 0;

  /// Goes on after so many calls, where a training is resumed.
  /// @throws c10::Error when it is negative.
  virtual void set_steps(int64_t steps) = 0;
};

}  // namespace ddp
