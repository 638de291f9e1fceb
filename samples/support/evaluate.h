#pragma once

#include <ddp/distributed_data_parallel.h>

#include <cstdint>
#include <functional>

#include "samples/support/images.h"
#include "samples/support/models.h"

namespace samples {

/// A classifier on all ranks.
using ParallelClassifier = ddp::DistributedDataParallel<Classifier>;

/// Result of classifying images, over all ranks.
struct Score {
  double loss;  ///< mean cross entropy per image
  int64_t correct;
  int64_t count;

  double percent() const {
    return 100.0 * static_cast<double>(correct) / static_cast<double>(count);
  }
};

/// Classifies every image once, on one of the ranks, and sums the results over
/// the ranks. Leaves the model in evaluation mode.
///
/// @param batch_size  images per rank and step
/// @returns the same score on every rank.
/// @throws c10::Error if there are fewer images than ranks.
///
/// Collective.
Score evaluate(ParallelClassifier& model,
               const Images& images,
               int64_t batch_size);

/// Same as `evaluate`, for a plain classifier on this rank only. Not
/// collective.
Score evaluate_here(Classifier& model,
                    const Images& images,
                    int64_t batch_size);

/// Same as above, for any model.
///
/// @param device  device of the scores
/// @param forward  computes the scores of a batch in the form in which it was
///   loaded, in evaluation mode
Score evaluate_here(
    const Images& images,
    int64_t batch_size,
    c10::Device device,
    const std::function<at::Tensor(const at::Tensor&)>& forward);

}  // namespace samples
