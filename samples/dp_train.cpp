// Trains an image classifier in one process, on all GPUs or on the given
// devices.
//
// Purpose: shows that only the wrapper differs from a training on one device.
// The optimizer and the checkpoint use the network itself, so the plain network
// and `train` can load the file. The bytes transferred between the first device
// and each replica, including those of tests, are printed at the end.
//
//   dp_train
//   dp_train --devices cuda:0,cuda:1 --dataset cifar10 --data DIR
//   dp_train --devices cpu,cpu,cpu --checkpoint DIR
//   dp_train --mode test --checkpoint DIR
#include <ddp/checkpoint.h>
#include <dp/data_parallel.h>
#include <torch/data/dataloader.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <iostream>

#include "samples/support/augment.h"
#include "samples/support/datasets.h"
#include "samples/support/devices.h"
#include "samples/support/models.h"
#include "samples/support/replica_traffic.h"
#include "samples/support/replicas.h"
#include "samples/support/report.h"
#include "samples/support/text.h"
#include "samples/support/train_options.h"

namespace {

using namespace samples;
namespace fs = std::filesystem;

struct Options : TrainOptions {
  std::vector<std::string> devices;
};

std::string replicas(const ReplicatedClassifier& model) {
  return count_of(std::max<int64_t>(model->devices().size(), 1), "replica");
}

std::string describe_job(const Options& options,
                         const ReplicatedClassifier& model) {
  const auto& devices = model->devices();
  return format("%s on %s, %ld images a step",
                replicas(model).c_str(),
                devices.empty() ? "cpu" : c10::Join(", ", devices).c_str(),
                options.recipe.batch_size);
}

std::string checkpoint_file(const Options& options) {
  return fs::path(options.checkpoint.folder) / "checkpoint.pt";
}

std::shared_ptr<Classifier> make_network(const Options& options,
                                         const Dataset& dataset) {
  auto network = make_model(options.recipe.model, dataset);
  if (options.no_dropout) {
    remove_dropout(*network);
  }
  return network;
}

// The samples' networks have no clone(), so the wrapper is given a function
// that makes another network.
ReplicatedClassifier wrap(const std::shared_ptr<Classifier>& network,
                          const Options& options,
                          const Dataset& dataset) {
  const auto devices = devices_or_gpus(options.devices, gpu_count());
  if (!devices.empty()) {
    network->to(devices.front());
  }
  return ReplicatedClassifier(
      network, dp::DataParallelOptions().devices(devices).make_replica([&] {
        return make_network(options, dataset);
      }));
}

// A training that can be resumed after each epoch.
class Training {
 public:
  Training(const Options& options,
           const Dataset& dataset,
           ReplicatedClassifier model,
           Report& report);

  /// Trains the remaining epochs and returns the score of the last test.
  Score run();

 private:
  void resume();
  void save(int64_t next_epoch);
  double train_epoch(int64_t epoch);
  torch::Tensor train_batch(const torch::data::Example<>& batch);
  Place place(int64_t epoch) const;
  Score test() {
    return evaluate_here(model_, dataset_.test, options_.recipe.batch_size);
  }

  const Options& options_;
  const Dataset& dataset_;
  ReplicatedClassifier model_;
  Report& report_;
  torch::optim::SGD optimizer_;
  ddp::DistributedSampler sampler_;
  ddp::Checkpoint checkpoint_;
};

Training::Training(const Options& options,
                   const Dataset& dataset,
                   ReplicatedClassifier model,
                   Report& report)
    : options_(options),
      dataset_(dataset),
      model_(std::move(model)),
      report_(report),
      optimizer_(model_->parameters(),
                 torch::optim::SGDOptions(options.recipe.learning_rate)
                     .momentum(0.9)
                     .nesterov(true)
                     .weight_decay(5e-4)),
      sampler_(*dataset.train.size(),
               ddp::DistributedSamplerOptions().seed(options.seed)),
      checkpoint_(model_->module()) {
  checkpoint_.optimizer(optimizer_).sampler(sampler_);
  if (!options.checkpoint.folder.empty()) {
    fs::create_directories(options.checkpoint.folder);
  }
}

Score Training::run() {
  if (options_.checkpoint.resume) {
    resume();
  }
  std::optional<Score> score;
  for (int64_t epoch = checkpoint_.epoch(); epoch < options_.recipe.epochs;
       ++epoch) {
    const Stopwatch time;
    const double loss = train_epoch(epoch);
    score = test();
    report_.epoch(place(epoch), loss, *score, time);
    save(epoch + 1);
  }
  return score ? *score : test();
}

void Training::resume() {
  const auto file = checkpoint_file(options_);
  if (!fs::exists(file)) {
    report_.nothing_to_resume(file);
    return;
  }
  checkpoint_.load(file);
  report_.resumed(file, checkpoint_.epoch(), checkpoint_.step());
}

void Training::save(int64_t next_epoch) {
  if (options_.checkpoint.folder.empty()) {
    return;
  }
  const auto file = checkpoint_file(options_);
  checkpoint_.epoch(next_epoch).save(file);
  report_.saved(file, next_epoch, checkpoint_.step());
}

// Returns the mean loss of the images.
double Training::train_epoch(int64_t epoch) {
  auto loader = torch::data::make_data_loader(
      dataset_.train, sampler_, options_.recipe.batch_size);
  auto sum = torch::zeros(
      {}, torch::dtype(torch::kFloat64).device(model_->output_device()));
  sampler_.set_epoch(epoch);
  model_->train();
  for (const auto& batch : *loader) {
    const Place here = place(epoch);
    set_learning_rate(optimizer_, options_.recipe.learning_rate, here);
    const auto loss = train_batch(batch);
    sum += loss * batch.data.size(0);
    checkpoint_.step(checkpoint_.step() + 1);
    if (report_.wants_progress()) {
      report_.progress(here, loss.item<double>());
    }
  }
  return sum.item<double>() / static_cast<double>(*dataset_.train.size());
}

torch::Tensor Training::train_batch(const torch::data::Example<>& batch) {
  const bool augments = options_.data.kind == DatasetKind::cifar10;
  const auto images = augments ? crop_and_flip(batch.data) : batch.data;
  optimizer_.zero_grad();
  // Each replica processes its part of the images; the scores are gathered.
  const auto scores = model_->forward(images);
  const auto loss =
      torch::cross_entropy_loss(scores, batch.target.to(scores.device()));
  loss.backward();  // the replicas' gradients are added to the network's
  optimizer_.step();
  return loss.detach();
}

Place Training::place(int64_t epoch) const {
  return place_of(
      sampler_, epoch, options_.recipe.epochs, options_.recipe.batch_size);
}

void run(const Options& options) {
  const Stopwatch time;
  const Dataset dataset = load_dataset(options.data);
  torch::manual_seed(options.seed);
  const auto network = make_network(options, dataset);
  if (options.mode == Mode::test) {
    ddp::load_state_dict(*network, checkpoint_file(options));
  }
  auto model = wrap(network, options, dataset);
  // The training starts from a fixed state of the generator, independent of
  // earlier random draws.
  torch::manual_seed(options.seed);

  Report report;
  report.begin(dataset, describe_job(options, model));
  const Score score =
      options.mode == Mode::test
          ? evaluate_here(model, dataset.test, options.recipe.batch_size)
          : Training(options, dataset, model, report).run();
  report.end(score, replicas(model), time);
  std::cout << to_table(model->traffic());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CommandLine line(
      "dp_train",
      "Trains a network on images, in one process, with a replica on each of "
      "several devices.");
  add_devices_option(line,
                     options.devices,
                     "all GPUs; where there is none, the network itself on the "
                     "CPU");
  const auto parsed = parse_train_options(line, argc, argv);
  if (const auto* exit = std::get_if<EarlyExit>(&parsed)) {
    return exit->print();
  }
  static_cast<TrainOptions&>(options) = std::get<TrainOptions>(parsed);
  return run_program("dp_train", [&] { run(options); });
}
