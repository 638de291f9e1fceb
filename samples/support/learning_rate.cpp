#include "samples/support/learning_rate.h"

#include <cmath>
#include <numbers>

namespace samples {

double cosine_learning_rate(double peak, int64_t step, int64_t steps) {
  const double done = static_cast<double>(step) / static_cast<double>(steps);
  return peak * (1 + std::cos(std::numbers::pi * done)) / 2;
}

}  // namespace samples
