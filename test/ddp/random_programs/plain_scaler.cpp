#include "test/ddp/random_programs/plain_scaler.h"

#include <torch/utils.h>

namespace ddp::test {

bool PlainScaler::unscale(const Learner& learner) const {
  bool has_found = false;
  for (const auto& parameter : learner.parameters) {
    auto& grad = parameter.mutable_grad();
    if (grad.defined()) {
      const torch::NoGradGuard no_grad;
      grad = grad / scale;
      has_found = has_found || !grad.to_dense().isfinite().all().item<bool>();
    }
  }
  return has_found;
}

void PlainScaler::update(bool is_left_out) {
  good_steps = is_left_out ? 0 : good_steps + 1;
  if (is_left_out) {
    scale /= 2;
  } else if (good_steps == kGoodSteps) {
    scale *= 2;
    good_steps = 0;
  }
}

}  // namespace ddp::test
