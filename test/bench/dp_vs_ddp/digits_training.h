#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "samples/support/command_line.h"
#include "samples/support/images.h"
#include "samples/support/memory_meter.h"
#include "samples/support/models.h"

namespace ddp::bench {

/// Three linear layers with two hidden layers of `width` units. With a large
/// `width` the network has many parameters to send for little computation.
class Mlp : public samples::Classifier {
 public:
  Mlp(const samples::ImageShape& shape, int64_t width, int64_t classes);

  torch::Tensor forward(const torch::Tensor& images) override;

 private:
  torch::nn::Linear fc1_, fc2_, fc3_;
};

struct DigitsTrainingOptions {
  int64_t batch_size = 64;
  std::string model = "cnn";  ///< or "mlp"
  int64_t width = 1024;       ///< units per hidden layer of the mlp
  double learning_rate = 0.05;
  double momentum = 0.9;
};

/// Adds the options to a command line. Call after setting the defaults.
void add_digits_training_options(samples::CommandLine& line,
                                 DigitsTrainingOptions& options);

/// A training on the digits with the same result in every process, independent
/// of the wrapper and of the split of the batches: the networks have neither
/// dropout nor batch norm. Memory is counted by device.
class DigitsTraining {
 public:
  using Batch = torch::data::Example<>;
  using Forward = std::function<torch::Tensor(const torch::Tensor& images)>;

  /// @param devices  devices of the forward passes; loss and optimizer are on
  ///   the first.
  /// @throws c10::Error if there are fewer images than a batch needs.
  DigitsTraining(const DigitsTrainingOptions& options,
                 const std::vector<torch::Device>& devices);

  /// The trained network, on the first device.
  const std::shared_ptr<samples::Classifier>& network() const {
    return network_;
  }
  const torch::optim::SGD& optimizer() const { return optimizer_; }

  /// Creates another network of the same kind on the device with index
  /// `device`.
  std::shared_ptr<samples::Classifier> make_network(size_t device) const;

  /// Returns the images of a step, taken from one random order that repeats.
  Batch batch(int64_t step);

  /// Runs forward, backward and optimizer, and returns the duration in seconds.
  /// @param weight  factor of the mean loss of the batch.
  double step(const Forward& forward, const Batch& batch, double weight);

  /// Same as `step`, and counts the memory.
  double metered_step(const Forward& forward,
                      const Batch& batch,
                      double weight);

  /// Returns the bytes that forward passes on a device had allocated and not
  /// freed when the loss of the metered step was computed: the memory kept for
  /// the backward pass.
  int64_t activation_bytes(size_t device) const { return live_.at(device); }
  /// Returns the bytes of the results of `forward` and of the loss at that
  /// time.
  int64_t result_bytes() const { return live_.back(); }

 private:
  torch::Tensor loss_of(const Forward& forward,
                        const torch::Tensor& images,
                        const torch::Tensor& labels,
                        double weight);
  void wait_for_devices() const;

  DigitsTrainingOptions options_;
  std::vector<torch::Device> devices_;
  samples::Dataset dataset_;
  torch::Tensor order_;
  // One owner per device, and one for the results.
  std::shared_ptr<samples::MemoryMeter> meter_;
  std::shared_ptr<samples::Classifier> network_;
  torch::optim::SGD optimizer_;
  std::vector<int64_t> live_;
};

}  // namespace ddp::bench
