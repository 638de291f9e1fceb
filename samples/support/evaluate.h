#pragma once

#include <ddp/distributed_data_parallel.h>

#include <cstdint>
#include <functional>

#include "samples/support/images.h"
#include "samples/support/models.h"

namespace samples {

/// A classifier on all ranks.
using ParallelClassifier = ddp::DistributedDataParallel<Classifier>;

/// How well images were classified, over all ranks.
struct Score {
  double loss;  ///< mean cross entropy of an image
  int64_t correct;
  int64_t count;

  double percent() const {
    return 100.0 * static_cast<double>(correct) / static_cast<double>(count);
  }
};

/// Classifies every image once, on one of the ranks, and adds up. The model is
/// in evaluation mode afterwards.
///
/// @param batch_size  images of one rank at a time
/// @returns the same on every rank.
/// @throws c10::Error when there are fewer images than ranks.
///
/// Collective.
Score evaluate(ParallelClassifier& model,
               const Images& images,
               int64_t batch_size);

/// The same on this rank alone, of a plain classifier. Not collective.
Score evaluate_here(Classifier& model,
                    const Images& images,
                    int64_t batch_size);

/// The same of any model.
///
/// @param device   where the scores are wanted
/// @param forward  scores of a batch as it was loaded, in evaluation mode
Score evaluate_here(
    const Images& images,
    int64_t batch_size,
    c10::Device device,
    const std::function<at::Tensor(const at::Tensor&)>& forward);

}  // namespace samples
