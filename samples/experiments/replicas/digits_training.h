#pragma once

#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "samples/experiments/replicas/memory_meter.h"
#include "samples/support/command_line.h"
#include "samples/support/images.h"
#include "samples/support/models.h"

namespace samples {

struct DigitsTrainingOptions {
  int64_t batch_size = 64;
  std::string model = "cnn";  ///< or "mlp"
  int64_t width = 1024;       ///< units in a layer of the mlp
  double learning_rate = 0.05;
  double momentum = 0.9;
};

/// Adds them to a command line. Call after setting the defaults.
void add_digits_training_options(CommandLine& line,
                                 DigitsTrainingOptions& options);

/// A training on the digits that is the same in every process, whichever
/// wrapper runs the network and however it cuts the batches: the networks have
/// neither dropout nor batch norm. Memory is counted by device.
class DigitsTraining {
 public:
  using Batch = torch::data::Example<>;
  using Forward = std::function<torch::Tensor(const torch::Tensor& images)>;

  /// @param devices  those that forward passes run on; loss and optimizer are
  ///   on the first.
  /// @throws c10::Error when there are fewer images than a batch has.
  DigitsTraining(const DigitsTrainingOptions& options,
                 const std::vector<torch::Device>& devices);

  /// The network that is trained, on the first device.
  const std::shared_ptr<Classifier>& network() const { return network_; }
  const torch::optim::SGD& optimizer() const { return optimizer_; }

  /// Another of its kind, on the device with this number.
  std::shared_ptr<Classifier> make_network(size_t device) const;

  /// The images of a step: the next of one random order, round and round.
  Batch batch(int64_t step);

  /// Forward, backward, optimizer; returns the seconds.
  /// @param weight  what the mean loss of the batch is multiplied by.
  double step(const Forward& forward, const Batch& batch, double weight);

  /// The same, counting the memory.
  double metered_step(const Forward& forward,
                      const Batch& batch,
                      double weight);

  /// Bytes that forward passes on a device had allocated and not freed when the
  /// loss of the metered step was there: what they keep for the backward pass.
  int64_t activation_bytes(size_t device) const { return live_.at(device); }
  /// The same of what `forward` gave back, and of the loss.
  int64_t result_bytes() const { return live_.back(); }

 private:
  torch::Tensor loss_of(const Forward& forward,
                        const torch::Tensor& images,
                        const torch::Tensor& labels,
                        double weight);
  void wait_for_devices() const;

  DigitsTrainingOptions options_;
  std::vector<torch::Device> devices_;
  Dataset dataset_;
  torch::Tensor order_;
  std::shared_ptr<MemoryMeter> meter_;  // an owner a device, and the results
  std::shared_ptr<Classifier> network_;
  torch::optim::SGD optimizer_;
  std::vector<int64_t> live_;
};

}  // namespace samples
