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

/// What the samples with parameter servers have in common: a small network on
/// the digits, on the CPU.
struct ServerJobOptions {
  int servers = 1;
  int64_t epochs = 10;
  int64_t batch_size = 32;  ///< images of one worker in one step
  double learning_rate = 0.05;
  double momentum = 0.9;
  uint64_t seed = 0;
  std::string data;  ///< folder of digits.csv; empty: beside the program
  std::string csv;   ///< file for the updates; empty: none
};

/// Adds their options to a command line. Call after setting the defaults.
void add_server_job_options(CommandLine& line, ServerJobOptions& options);

/// The digits and a network for them, the same on every rank.
struct ServerJob {
  explicit ServerJob(const ServerJobOptions& options);

  ServerJobOptions options;
  Dataset dataset;
  std::shared_ptr<Classifier> network;

  /// A network with the same parameters as `network` had at the start.
  std::shared_ptr<Classifier> make_network() const;

  /// SGD with the options' learning rate and momentum.
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      const std::vector<torch::Tensor>& parameters) const;

  /// Steps that one of so many workers makes in one epoch, and in all.
  int64_t epoch_steps(int workers) const;
  int64_t steps(int workers) const {
    return options.epochs * epoch_steps(workers);
  }

  /// Calls `train` with each batch of one worker, and `end` (if not null) with
  /// the number of epochs done after each. Dropout begins at the same place
  /// every time.
  void run(int worker,
           int workers,
           const std::function<void(const torch::data::Example<>&)>& train,
           const std::function<void(int64_t)>& end = nullptr) const;

  /// Of `network` or one like it.
  Score test(Classifier& classifier) const;
};

/// "12.3 MiB sent, 4.5 MiB received"
std::string to_text(const dp::MovedBytes& moved);
/// "97.46 % (346 of 355)"
std::string to_text(const Score& score);

}  // namespace samples
