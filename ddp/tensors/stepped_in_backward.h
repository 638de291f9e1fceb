#pragma once

#include <torch/optim/optimizer.h>

namespace ddp::detail {

/// Registers an optimizer that a `StepInBackward` steps, while this object
/// lives. Units that come too late for such a step ask `contains`.
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
