// Trains an image classifier on the ranks that the launcher starts; also runs
// on a single rank. The calls into ddp:: make the training distributed.
//
//   train
//   ddprun --nproc-per-node=4 train
//   ddprun --nproc-per-node=4 train --dataset cifar10 --data DIR
//   ddprun --nproc-per-node=4 train --amp fp16 --log-every 5
//   ddprun --on-preempt USR1:60 train --checkpoint DIR --resume
#include <ddp/ddp.h>
#include <torch/data/dataloader.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <iostream>
#include <optional>

#include "samples/support/augment.h"
#include "samples/support/datasets.h"
#include "samples/support/models.h"
#include "samples/support/parameter_hash.h"
#include "samples/support/report.h"
#include "samples/support/text.h"
#include "samples/support/train_options.h"

namespace {

using namespace samples;
namespace fs = std::filesystem;

// Returns the number of images of this rank in one step.
int64_t share(const Recipe& recipe) {
  const int64_t world = ddp::world_size();
  return (recipe.batch_size + world - 1) / world;
}

std::string ranks() {
  return count_of(ddp::world_size(), "rank");
}

std::string describe_job(const Recipe& recipe) {
  return format("%s over %s, rank 0 on %s, %ld images a rank and step",
                ranks().c_str(),
                ddp::process_group()->getBackendName().c_str(),
                ddp::local_device().str().c_str(),
                share(recipe));
}

fs::path checkpoint_file(const CheckpointOptions& options) {
  return fs::path(options.folder) / "checkpoint.pt";
}

// Returns the options that select the dtype of products and convolutions.
ddp::AutocastOptions autocast_for(Precision precision) {
  return ddp::AutocastOptions()
      .enabled(precision != Precision::full)
      .dtype(precision == Precision::fp16 ? torch::kHalf : torch::kBFloat16);
}

// A training that can be interrupted and resumed, also within an epoch.
class Training {
 public:
  Training(const TrainOptions& options,
           const Dataset& dataset,
           ParallelClassifier model,
           Report& report);

  /// Trains the remaining epochs and returns the score of the last test, or
  /// std::nullopt if the training has saved a checkpoint and stopped early.
  std::optional<Score> run();

 private:
  void resume();
  void save(int64_t next_epoch);
  bool is_to_stop() const;
  std::optional<double> train_epoch(int64_t epoch);
  torch::Tensor train_batch(const torch::data::Example<>& batch);
  void report_step(const Place& place, const torch::Tensor& loss);
  Place place(int64_t epoch) const;
  Score test() {
    return evaluate(model_, dataset_.test, share(options_.recipe));
  }

  const TrainOptions& options_;
  const Dataset& dataset_;
  ParallelClassifier model_;
  Report& report_;
  torch::optim::SGD optimizer_;
  ddp::GradScaler scaler_;  // for fp16 only
  ddp::DistributedSampler sampler_;
  ddp::Checkpoint checkpoint_;
};

Training::Training(const TrainOptions& options,
                   const Dataset& dataset,
                   ParallelClassifier model,
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
      scaler_(ddp::GradScalerOptions().enabled(options.precision ==
                                               Precision::fp16)),
      sampler_(*dataset.train.size(),
               ddp::DistributedSamplerOptions().seed(options.seed)),
      checkpoint_(model_) {
  checkpoint_.optimizer(optimizer_).sampler(sampler_).scaler(scaler_);
  if (ddp::rank() == 0 && !options.checkpoint.folder.empty()) {
    fs::create_directories(options.checkpoint.folder);
  }
}

std::optional<Score> Training::run() {
  is_to_stop();  // registers this program's interest with ddprun
  if (options_.checkpoint.resume) {
    resume();
  }
  std::optional<Score> score;
  for (int64_t epoch = checkpoint_.epoch(); epoch < options_.recipe.epochs;
       ++epoch) {
    const Stopwatch time;
    const auto loss = train_epoch(epoch);
    if (loss) {
      score = test();
      report_.epoch(place(epoch), *loss, *score, time);
    }
    save(loss ? epoch + 1 : epoch);
    if (checkpoint_.epoch() < options_.recipe.epochs && is_to_stop()) {
      report_.stopped(checkpoint_.step());
      return std::nullopt;
    }
  }
  return score ? *score : test();
}

void Training::resume() {
  const auto file = checkpoint_file(options_.checkpoint);
  // The ranks must take the same decision. load() then reports a rank that
  // lacks the file.
  const auto seen = torch::tensor(int64_t{fs::exists(file)});
  if (ddp::reduce_tensor(seen, ddp::Reduction::max).item<int64_t>() == 0) {
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
  const auto file = checkpoint_file(options_.checkpoint);
  checkpoint_.epoch(next_epoch).save(file);
  report_.saved(file, next_epoch, checkpoint_.step());
}

// Returns true if the machine is about to be preempted (ddprun --on-preempt);
// the answer is the same on all ranks. A program without checkpoints does not
// ask, so ddprun sends it the signal.
bool Training::is_to_stop() const {
  return !options_.checkpoint.folder.empty() && ddp::stop_requested();
}

// Returns the mean loss of the images on which this program trained, or
// std::nullopt if the training stopped early.
std::optional<double> Training::train_epoch(int64_t epoch) {
  const int64_t every = options_.checkpoint.every;
  auto loader = torch::data::make_data_loader(
      dataset_.train, sampler_, share(options_.recipe));
  auto sums = torch::zeros(
      {2}, torch::dtype(torch::kFloat64).device(ddp::local_device()));
  sampler_.set_epoch(epoch);
  model_->train();
  for (const auto& batch : *loader) {
    const Place here = place(epoch);
    set_learning_rate(optimizer_, options_.recipe.learning_rate, here);
    const auto loss = train_batch(batch);
    sums[0] += loss * batch.data.size(0);
    sums[1] += batch.data.size(0);

    checkpoint_.step(checkpoint_.step() + 1);
    report_step(here, loss);
    if (here.step == here.steps) {
      continue;  // the end of the epoch saves its own checkpoint
    }
    if (is_to_stop()) {
      return std::nullopt;
    }
    if (every > 0 && checkpoint_.step() % every == 0) {
      save(epoch);
    }
  }
  sums = ddp::reduce_tensor(sums, ddp::Reduction::sum);
  return (sums[0] / sums[1]).item<double>();
}

torch::Tensor Training::train_batch(const torch::data::Example<>& batch) {
  const auto device = ddp::local_device();
  const bool augments = options_.data.kind == DatasetKind::cifar10;
  const auto images = augments ? crop_and_flip(batch.data) : batch.data;
  optimizer_.zero_grad();
  torch::Tensor loss;
  {
    const ddp::AutocastGuard autocast(device.type(),
                                      autocast_for(options_.precision));
    loss = torch::cross_entropy_loss(model_->forward(images.to(device)),
                                     batch.target.to(device));
  }
  scaler_.scale(loss).backward();  // every .grad is now the mean over the ranks
  scaler_.step(optimizer_);        // skips the step if a gradient is inf or NaN
  scaler_.update();
  return loss.detach();
}

void Training::report_step(const Place& place, const torch::Tensor& loss) {
  const int64_t every = options_.report.log_every;
  if (every > 0 && checkpoint_.step() % every == 0) {
    const auto scale = scaler_.is_enabled() ? std::optional(scaler_.get_scale())
                                            : std::nullopt;
    report_.step(place, ddp::reduce_tensor(loss).item<double>(), scale);
  }
  if (report_.wants_progress()) {
    report_.progress(place, loss.item<double>());
  }
}

Place Training::place(int64_t epoch) const {
  return place_of(
      sampler_, epoch, options_.recipe.epochs, share(options_.recipe));
}

void run(const TrainOptions& options) {
  const Stopwatch time;
  init_process_group(options.device);
  ddp::seed_everything(options.seed);

  const Dataset dataset = load_dataset(options.data);
  const auto network = make_model(options.recipe.model, dataset);
  if (options.no_dropout) {
    remove_dropout(*network);
  }
  if (options.mode == Mode::test && ddp::rank() == 0) {
    // The wrapper broadcasts the parameters of rank 0 to the other ranks.
    ddp::load_state_dict(*network, checkpoint_file(options.checkpoint));
  }
  network->to(ddp::local_device());
  ParallelClassifier model(network);

  Report report;
  report.begin(dataset, describe_job(options.recipe));
  const std::optional<Score> score =
      options.mode == Mode::test
          ? evaluate(model, dataset.test, share(options.recipe))
          : Training(options, dataset, model, report).run();
  if (options.report.print_hash) {
    // One write per line, because the ranks share the terminal.
    std::cout << format("rank %d: parameters %016lx\n",
                        ddp::rank(),
                        parameter_hash(*network))
              << std::flush;
  }
  if (score) {
    report.end(*score, ranks(), time);
  }
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = parse_train_options(argc, argv);
  if (const auto* exit = std::get_if<EarlyExit>(&parsed)) {
    return exit->print();
  }
  return run_program("train", [&] { run(std::get<TrainOptions>(parsed)); });
}
