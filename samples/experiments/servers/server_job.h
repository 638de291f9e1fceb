#pragma once

#include <dp/parameter_server.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "samples/support/command_line.h"
#include "samples/support/evaluate.h"
#include "samples/support/images.h"
#include "samples/support/models.h"

namespace samples {

/// Common options of the samples with parameter servers, which train a small
/// network on the digits, on the CPU.
struct ServerJobOptions {
  int servers = 1;
  int64_t epochs = 10;
  int64_t batch_size = 32;  ///< images per worker and step
  double learning_rate = 0.05;
  double momentum = 0.9;
  uint64_t seed = 0;
  std::string data;  ///< folder of digits.csv; empty: beside the program
  std::string csv;   ///< file for the updates; empty: none
};

/// Adds the options to a command line. Call after setting the defaults.
void add_server_job_options(CommandLine& line, ServerJobOptions& options);

/// The digits and a network for them. Both are the same on every rank.
struct ServerJob {
  explicit ServerJob(const ServerJobOptions& options);

  ServerJobOptions options;
  Dataset dataset;
  std::shared_ptr<Classifier> network;

  /// Creates a network with the initial parameters of `network`.
  std::shared_ptr<Classifier> make_network() const;

  /// Creates SGD with the learning rate and momentum of the options.
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      const std::vector<torch::Tensor>& parameters) const;

  /// Return the number of steps that one of `workers` workers makes in one
  /// epoch, and in all epochs.
  int64_t epoch_steps(int workers) const;
  int64_t steps(int workers) const {
    return options.epochs * epoch_steps(workers);
  }

  /// Calls `train` with each batch of one worker. After each epoch calls `end`
  /// (if not null) with the number of epochs done. Every call starts dropout
  /// from the same random state.
  void run(int worker,
           int workers,
           const std::function<void(const torch::data::Example<>&)>& train,
           const std::function<void(int64_t)>& end = nullptr) const;

  /// Returns the test score of `network` or of a network of the same kind.
  Score test(Classifier& classifier) const;
};

/// Returns, for example, "12.3 MiB sent, 4.5 MiB received".
std::string to_text(const dp::MovedBytes& moved);
/// Returns, for example, "97.46 % (346 of 355)".
std::string to_text(const Score& score);

}  // namespace samples
