#include "samples/support/training_place.h"

#include "samples/support/learning_rate.h"

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

void set_learning_rate(torch::optim::SGD& optimizer,
                       double peak,
                       const Place& place) {
  const double rate =
      cosine_learning_rate(peak,
                           (place.epoch - 1) * place.steps + place.step - 1,
                           place.epochs * place.steps);
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(rate);
  }
}

}  // namespace samples
