#include "samples/support/schedule.h"

#include <cmath>
#include <numbers>

namespace samples {

Place place_of(const ddp::DistributedSampler& sampler,
               int64_t epoch,
               int64_t epochs,
               int64_t batch_size) {
  const auto batches = [batch_size](size_t images) {
    return (static_cast<int64_t>(images) + batch_size - 1) / batch_size;
  };
  return {
      epoch + 1, epochs, batches(sampler.position()), batches(sampler.size())};
}

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

void set_learning_rate(torch::optim::Optimizer& optimizer,
                       double peak,
                       const Place& place) {
  set_learning_rate(optimizer,
                    peak,
                    (place.epoch - 1) * place.steps + place.step - 1,
                    place.epochs * place.steps);
}

}  // namespace samples
