#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/optim/model_averager.h"

namespace ddp {

/// Options of `PeriodicModelAverager`; the same on all ranks.
///
/// Example:
/// @code
///   ddp::PeriodicModelAverager averager(
///       ddp::PeriodicModelAveragerOptions(4).warmup_steps(100));
/// @endcode
struct PeriodicModelAveragerOptions {
  /// @param period  steps from one averaging to the next; positive.
  PeriodicModelAveragerOptions(int64_t period) : period_(period) {}  // NOLINT

  TORCH_ARG(int64_t, period);
  /// Steps before the first averaging, in which gradients are averaged.
  TORCH_ARG(int64_t, warmup_steps) = 0;
  /// Steps made already, where a training is resumed.
  TORCH_ARG(int64_t, steps) = 0;
  /// Null: all ranks.
  TORCH_ARG(c10::intrusive_ptr<c10d::Backend>, process_group) = nullptr;
};

/// Averages parameters over ranks every few steps, instead of gradients in
/// each: local SGD. What a rank sends in a step is 1/period of what averaging
/// gradients sends. PyTorch's PeriodicModelAverager.
///
/// Example, post-local SGD: gradients are averaged in 100 steps; from then on
/// each rank trains alone, and every 4 steps the parameters are averaged:
/// @code
///   auto exchange = std::make_shared<ddp::SwitchExchange>(
///       std::make_shared<ddp::AllReduce>(ddp::process_group()),
///       100,
///       std::make_shared<ddp::NoExchange>());
///   ddp::DistributedDataParallel model(
///       net, ddp::DistributedDataParallelOptions().exchange(exchange));
///   ddp::PeriodicModelAverager averager(
///       ddp::PeriodicModelAveragerOptions(4).warmup_steps(100));
///   for (...) {
///     optimizer.zero_grad();
///     loss_of(model->forward(batch.data), batch.target).backward();
///     optimizer.step();
///     averager.average_parameters(model->parameters());
///   }
/// @endcode
class PeriodicModelAverager : public ModelAverager {
 public:
  /// @throws c10::Error when the period is not positive, or a number of steps
  ///   is negative.
  explicit PeriodicModelAverager(PeriodicModelAveragerOptions options);

  /// After the last step of a period, and after the first one behind the
  /// warm-up, parameters become their mean over ranks: an all-reduce for each
  /// dtype and device.
  bool average_parameters(const std::vector<at::Tensor>& parameters) override;

  int64_t steps() const override { return options_.steps(); }
  void set_steps(int64_t steps) override;

 private:
  PeriodicModelAveragerOptions options_;
};

}  // namespace ddp
