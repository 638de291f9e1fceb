#pragma once

#include <limits>
#include <vector>

#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/amp/grad_scaler.h"

namespace ddp::test {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// One parameter, with a gradient that the test chooses.
struct Toy {
  explicit Toy(torch::Dtype dtype = torch::kFloat)
      : weight(torch::zeros({3}, dtype).requires_grad_()) {}

  void backward(GradScaler& scaler, const torch::Tensor& slopes) {
    optimizer.zero_grad();
    scaler.scale((weight * slopes.to(weight.dtype())).sum()).backward();
  }
  void backward(GradScaler& scaler, double slope) {
    backward(scaler, torch::full({3}, slope));
  }
  bool step(GradScaler& scaler, double slope) {
    backward(scaler, slope);
    return scaler.step(optimizer);
  }
  /// Runs step() and ends the iteration.
  bool train(GradScaler& scaler, double slope) {
    const bool stepped = step(scaler, slope);
    scaler.update();
    return stepped;
  }
  bool holds(double value) const { return weight.eq(value).all().item<bool>(); }

  torch::Tensor weight;
  torch::optim::SGD optimizer{std::vector<torch::Tensor>{weight}, 1.0};
};

/// Returns a small scale and growth interval, so that tests reach changes soon.
inline GradScalerOptions small_scaler() {
  return GradScalerOptions().init_scale(8).growth_interval(3);
}

}  // namespace ddp::test
