#pragma once

#include <dp/data_parallel.h>

#include <cstdint>

#include "samples/support/evaluate.h"

namespace samples {

/// A classifier with replicas in this process.
using ReplicatedClassifier = dp::DataParallel<Classifier>;

/// Evaluates the model on images. Not collective. Leaves the model in
/// evaluation mode.
///
/// @param batch_size  images per step, over all replicas
Score evaluate_here(ReplicatedClassifier& model,
                    const Images& images,
                    int64_t batch_size);

}  // namespace samples
