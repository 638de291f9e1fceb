#include "samples/experiments/servers/server_job.h"

#include <ddp/data/distributed_sampler.h>
#include <ddp/process_group.h>
#include <torch/data/dataloader.h>
#include <torch/optim/sgd.h>

#include "samples/support/datasets.h"
#include "samples/support/text.h"

namespace samples {
namespace {

Dataset load(const ServerJobOptions& options) {
  DataOptions data;
  data.folder = options.data;
  return load_dataset(data);
}

}  // namespace

void add_server_job_options(CommandLine& line, ServerJobOptions& options) {
  line.add("--servers", options.servers, "Ranks that serve; the others work")
      .between(1, 1 << 20);
  line.add("--epochs", options.epochs, "Passes over the digits").at_least(1);
  line.add("--batch-size",
           options.batch_size,
           "Images of one worker in one step")
      .at_least(1);
  line.add("--lr",
           options.learning_rate,
           "Learning rate at the start, from where it falls to 0 along a "
           "cosine")
      .above_zero();
  line.add("--momentum", options.momentum, "Momentum of SGD").between(0, 1);
  line.add("--seed", options.seed, "Of parameters, order and dropout")
      .at_least(0);
  line.add("--data", options.data, "Folder with digits.csv");
  line.add("--csv",
           options.csv,
           "File for the updates that rank 0 makes (scripts/plot)");
}

ServerJob::ServerJob(const ServerJobOptions& given)
    : options(given), dataset(load(given)), network(make_network()) {}

std::shared_ptr<Classifier> ServerJob::make_network() const {
  torch::manual_seed(options.seed);
  return make_model(ModelKind::small_cnn, dataset);
}

std::unique_ptr<torch::optim::Optimizer> ServerJob::make_optimizer(
    const std::vector<torch::Tensor>& parameters) const {
  return std::make_unique<torch::optim::SGD>(
      parameters,
      torch::optim::SGDOptions(options.learning_rate)
          .momentum(options.momentum));
}

int64_t ServerJob::epoch_steps(int workers) const {
  const auto images = static_cast<int64_t>(*dataset.train.size());
  const int64_t share = (images + workers - 1) / workers;
  return (share + options.batch_size - 1) / options.batch_size;
}

void ServerJob::run(
    int worker,
    int workers,
    const std::function<void(const torch::data::Example<>&)>& train,
    const std::function<void(int64_t)>& end) const {
  ddp::DistributedSampler sampler(
      *dataset.train.size(),
      ddp::DistributedSamplerOptions().num_replicas(workers).rank(worker).seed(
          options.seed));
  auto loader =
      torch::data::make_data_loader(dataset.train, sampler, options.batch_size);
  torch::manual_seed(options.seed + 1 + static_cast<uint64_t>(worker));
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& batch : *loader) {
      train(batch);
    }
    if (end) {
      end(epoch + 1);
    }
  }
}

Score ServerJob::test(Classifier& classifier) const {
  return evaluate_here(classifier, dataset.test, options.batch_size);
}

std::string to_text(const dp::MovedBytes& moved) {
  constexpr double kMiB = 1024 * 1024;
  return format("%.1f MiB sent, %.1f MiB received",
                static_cast<double>(moved.sent) / kMiB,
                static_cast<double>(moved.received) / kMiB);
}

std::string to_text(const Score& score) {
  return format(
      "%.2f %% (%ld of %ld)", score.percent(), score.correct, score.count);
}

}  // namespace samples
