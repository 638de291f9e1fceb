#pragma once

#include <ddp/distributed_sampler.h>
#include <torch/optim/sgd.h>

#include <cstdint>

#include "samples/support/report.h"

namespace samples {

/// Where a training is in epoch `epoch`, counted from 0, of `epochs`. The step
/// is the one whose `batch_size` images the sampler gave out last.
Place place_of(const ddp::DistributedSampler& sampler,
               int64_t epoch,
               int64_t epochs,
               int64_t batch_size);

/// Gives all parameters the rate of this step: cosine decay from `peak`.
void set_learning_rate(torch::optim::SGD& optimizer,
                       double peak,
                       const Place& place);

}  // namespace samples
