#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/optim/model_averager.h"

namespace ddp {

/// Ranks that average their parameters every so many steps.
struct AveragingLevel {
  int64_t period;
  /// This rank's group. Null: all ranks.
  c10::intrusive_ptr<c10d::Backend> process_group = nullptr;
};

/// Averages parameters among few ranks often and among many seldom:
/// hierarchical SGD. Of the levels whose period divides the steps so far, that
/// with the longest one averages; its group has the others' in it. As PyTorch's
/// HierarchicalModelAverager the first averaging is in the first step behind
/// the warm-up that a period divides, where `PeriodicModelAverager` counts from
/// the warm-up.
///
/// Where gradients go on being averaged within a host, as PyTorch has it, the
/// exchange does that: `SwitchExchange` to an `AllReduce` over the host.
///
/// Example, 16 ranks, of which groups of 8 average every 4 steps:
/// @code
///   auto lower = ddp::new_group({0, 1, 2, 3, 4, 5, 6, 7});
///   auto upper = ddp::new_group({8, 9, 10, 11, 12, 13, 14, 15});
///   ddp::HierarchicalModelAverager averager(
///       {{4, lower ? lower : upper}, {16, ddp::process_group()}},
///       /*warmup_steps=*/100);
/// @endcode
///
/// Source: Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR
/// 2020;
/// torch.distributed.algorithms.model_averaging.hierarchical_model_averager.
class HierarchicalModelAverager : public ModelAverager {
 public:
  /// @param levels  the shortest period first, the same periods on all ranks.
  /// @throws c10::Error when there is none, periods are not positive and
  ///   ascending, a group has fewer ranks than the one before, or warmup_steps
  ///   is negative.
  explicit HierarchicalModelAverager(std::vector<AveragingLevel> levels,
                                     int64_t warmup_steps = 0);

  bool average_parameters(const std::vector<at::Tensor>& parameters) override;

  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override;

 private:
  std::vector<AveragingLevel> levels_;
  int64_t warmup_steps_;
  int64_t steps_ = 0;
};

}  // namespace ddp
