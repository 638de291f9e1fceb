#pragma once

#include <ddp/data/distributed_sampler.h>
#include <torch/optim/optimizer.h>

#include <cstdint>

namespace samples {

/// A step of a training, counted from 1.
struct Place {
  int64_t epoch;
  int64_t epochs;
  int64_t step;  ///< in this epoch
  int64_t steps;
};

/// Returns the position of a training in epoch `epoch`, counted from 0, of
/// `epochs`. The step is the one whose `batch_size` images the sampler returned
/// last.
Place place_of(const ddp::DistributedSampler& sampler,
               int64_t epoch,
               int64_t epochs,
               int64_t batch_size);

/// Returns the learning rate of cosine decay: `peak` at step 0, nearly 0 at the
/// last of `steps`.
///
/// Source: Loshchilov and Hutter, "SGDR", ICLR 2017, without restarts.
double cosine_learning_rate(double peak, int64_t step, int64_t steps);

/// Sets the learning rate of all parameters for a step, counted from 0, with
/// cosine decay.
void set_learning_rate(torch::optim::Optimizer& optimizer,
                       double peak,
                       int64_t step,
                       int64_t steps);
void set_learning_rate(torch::optim::Optimizer& optimizer,
                       double peak,
                       const Place& place);

}  // namespace samples
