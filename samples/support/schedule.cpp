#include "samples/support/schedule.h"

#include <cmath>
#include <numbers>

namespace samples {

double cosine_learning_rate(double peak, int64_t step, int64_t steps) {
  const double done = static_cast<double>(step) / static_cast<double>(steps);
  return peak * (1 + std::cos(std::numbers::pi * done)) / 2;
}

void set_learning_rate(torch::optim::Optimizer& optimizer,
                       double peak,
                       int64_t step,
                       int64_t steps) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(cosine_learning_rate(peak, step, steps));
  }
}

}  // namespace samples
