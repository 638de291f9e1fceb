#pragma once

#include <dp/data_parallel.h>

#include <cstdint>

#include "samples/support/evaluate.h"

namespace samples {

/// A classifier with replicas in this process.
using ReplicatedClassifier = dp::DataParallel<Classifier>;

/// How well it classifies images. Not collective. The model is in evaluation
/// mode afterwards.
///
/// @param batch_size  images of all replicas at a time
Score evaluate_here(ReplicatedClassifier& model,
                    const Images& images,
                    int64_t batch_size);

}  // namespace samples
