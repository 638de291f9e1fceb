#pragma once

#include <torch/optim/optimizer.h>

namespace ddp::detail {

/// Registers, while this object exists, an optimizer that a `StepInBackward`
/// steps. Objects that would act too late for this step call `contains`.
class SteppedInBackward {
 public:
  explicit SteppedInBackward(const torch::optim::Optimizer& optimizer);
  SteppedInBackward(const SteppedInBackward&) = delete;
  SteppedInBackward& operator=(const SteppedInBackward&) = delete;
  ~SteppedInBackward();

  static bool contains(const torch::optim::Optimizer& optimizer);

 private:
  const torch::optim::Optimizer* optimizer_;
};

}  // namespace ddp::detail
