#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

#include "samples/support/images.h"
#include "samples/support/models.h"

namespace samples {

/// Result of classifying images.
struct Score {
  double loss;  ///< mean cross entropy per image
  int64_t correct;
  int64_t count;

  double percent() const {
    return 100.0 * static_cast<double>(correct) / static_cast<double>(count);
  }
};

/// Judges each image of a batch: float64 [n, 2] with the cross entropy and, if
/// the class is right, a 1.
torch::Tensor judge(const torch::Tensor& scores, const torch::Tensor& labels);

/// Sums up the rows of `judge` for a whole data set.
Score to_score(const torch::Tensor& rows);

/// Classifies the images in this process alone, on the device of the
/// parameters. Leaves the classifier in evaluation mode.
Score classify(Classifier& classifier, const Images& images);

/// Returns, for example, "97.46 % (346 of 355)".
std::string to_text(const Score& score);

}  // namespace samples
