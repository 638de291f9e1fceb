#pragma once

#include <torch/optim/sgd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "samples/support/devices.h"
#include "samples/support/evaluate.h"
#include "samples/support/images.h"

namespace samples {

struct InspectOptions {
  std::string model = "cnn";
  std::vector<int64_t> shape{3, 32, 32};
  int64_t images = 512;
  int64_t batch_size = 64;
  int64_t steps = 5;
  double bucket_cap_mb = 1;
  std::vector<std::string> parameters;
  std::string timeline;
  DeviceOptions device;
};

/// A model on all ranks and one batch of random images, which every step trains
/// on. The steps have profiler scopes.
class Experiment {
 public:
  explicit Experiment(const InspectOptions& options);

  /// Indices of this rank's images in the first step.
  const std::vector<size_t>& indices() const { return indices_; }
  /// Returns the names of the parameters.
  std::vector<std::string> names() const;

  /// Runs one training step with the scopes "forward", "backward" and
  /// "optimizer".
  void step();

  /// Runs forward and backward of the wrapped module itself, without
  /// communication. Scopes: "forward alone", "backward alone".
  void pass_alone();

  /// Returns the gradients of this batch: this rank's own, or those after
  /// synchronisation. Dropout draws the same random numbers for both.
  std::vector<torch::Tensor> gradients(bool are_synchronised);

 private:
  Dataset dataset_;
  std::vector<size_t> indices_;
  ParallelClassifier model_;
  torch::optim::SGD optimizer_;
  torch::Tensor images_;
  torch::Tensor labels_;
};

}  // namespace samples
