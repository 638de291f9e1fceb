#include "ddp/optim/periodic_model_averager.h"

#include <utility>

#include "ddp/detail/optim/average_parameters.h"
#include "ddp/detail/peers.h"

namespace ddp {
PeriodicModelAverager::PeriodicModelAverager(
    PeriodicModelAveragerOptions options)
    : options_(std::move(options)) {
  TORCH_CHECK(
      options_.period() > 0,
      "Expected the period of PeriodicModelAverager to be positive, but "
      "got ",
      options_.period());
  TORCH_CHECK(options_.warmup_steps() >= 0 && options_.steps() >= 0,
              "Expected warmup_steps and steps of PeriodicModelAverager not to "
              "be negative, but got ",
              options_.warmup_steps(),
              " and ",
              options_.steps());
}

bool PeriodicModelAverager::average_parameters(
    const std::vector<at::Tensor>& parameters) {
  const int64_t since = options_.steps() - options_.warmup_steps();
  options_.steps(options_.steps() + 1);
  if (since < 0 || since % options_.period() != 0) {
    return false;
  }
  const auto group = detail::peers(options_.process_group());
  if (!group) {
    return true;
  }
  detail::average_over_ranks(*group, detail::trained_of(parameters));
  return true;
}

void PeriodicModelAverager::set_steps(int64_t steps) {
  detail::check_steps(steps);
  options_.steps(steps);
}

}  // namespace ddp
