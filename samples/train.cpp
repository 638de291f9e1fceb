// Trains an image classifier on the ranks that the launcher starts; also runs
// on a single rank. The calls into ddp:: make the training distributed.
//
//   train
//   ddprun --nproc-per-node=4 train
//   ddprun --nproc-per-node=4 train --dataset cifar10 --data DIR
//   ddprun --nproc-per-node=4 train --amp fp16 --clip-norm 1 --log-every 5
//   ddprun --nproc-per-node=2 train --batch-size 256 --accumulate 4
//   ddprun --on-preempt USR1:60 train --checkpoint DIR --resume
//   ddprun --nproc-per-node=4 train --graph
#include <ddp/ddp.h>
#include <torch/data/dataloader.h>
#include <torch/nn/utils/clip_grad.h>

#include <filesystem>
#include <optional>

#include "samples/support/augment.h"
#include "samples/support/datasets.h"
#include "samples/support/models.h"
#include "samples/support/parameter_hash.h"
#include "samples/support/schedule.h"
#include "samples/support/score.h"
#include "samples/support/stopwatch.h"
#include "samples/support/text.h"
#include "samples/train_options.h"

namespace {

using namespace samples;

using Model = ddp::DistributedDataParallel<Classifier>;

// Returns the number of images of this rank in one step.
int64_t share(const Recipe& recipe) {
  const int64_t world = ddp::world_size();
  return (recipe.batch_size + world - 1) / world;
}

// Tests the model on all ranks, each image on one of them.
Score test(Model& model, Images images, int64_t batch_size) {
  const auto device = ddp::local_device();
  const torch::NoGradGuard no_grad;
  ddp::DistributedSampler sampler(
      *images.size(),
      ddp::DistributedSamplerOptions().shuffle(false).padding(false));
  torch::Tensor rows;
  model->eval();
  while (const auto indices = sampler.next(static_cast<size_t>(batch_size))) {
    const auto batch = images.get_batch(*indices);
    const auto judged =
        judge(model->forward(batch.data.to(device)), batch.target.to(device));
    rows = rows.defined() ? torch::cat({rows, judged}) : judged;
  }
  return to_score(torch::cat(ddp::all_gather(rows)));
}

// A training that can be interrupted and resumed, also within an epoch.
class Training {
 public:
  Training(const TrainOptions& options, const Dataset& dataset, Model model);

  /// Trains the remaining epochs and returns the score of the last test, or
  /// std::nullopt if the training has saved a checkpoint and stopped early.
  std::optional<Score> run();

 private:
  void resume();
  void save(int64_t next_epoch);
  bool is_to_stop() const;
  std::optional<double> train_epoch(int64_t epoch);
  torch::Tensor loss_of(const torch::Tensor& images,
                        const torch::Tensor& labels);
  torch::Tensor train_batch(const torch::data::Example<>& batch);
  void log(const std::string& place, const torch::Tensor& loss) const;

  const TrainOptions& options_;
  const Dataset& dataset_;
  Model model_;
  ddp::FusedSGD optimizer_;
  ddp::GradScaler scaler_;  // for fp16 only
  ddp::AutocastOptions autocast_;
  std::optional<ddp::GraphedStep> graphed_;  // with --graph
  ddp::DistributedSampler sampler_;
  ddp::Checkpoint checkpoint_;
  ddp::CheckpointFolder folder_;
};

Training::Training(const TrainOptions& options,
                   const Dataset& dataset,
                   Model model)
    : options_(options),
      dataset_(dataset),
      model_(std::move(model)),
      optimizer_(model_->parameters(),
                 torch::optim::SGDOptions(options.recipe.learning_rate)
                     .momentum(0.9)
                     .nesterov(true)
                     .weight_decay(5e-4)),
      scaler_(ddp::GradScalerOptions().enabled(options.precision ==
                                               Precision::fp16)),
      sampler_(*dataset.train.size(),
               ddp::DistributedSamplerOptions().seed(options.seed)),
      checkpoint_(model_),
      folder_(options.checkpoint.folder) {
  autocast_.enabled(options.precision != Precision::full)
      .dtype(options.precision == Precision::fp16 ? torch::kHalf
                                                  : torch::kBFloat16);
  checkpoint_.add("optimizer", optimizer_)
      .add("sampler", sampler_)
      .add("scaler", scaler_);
  if (options.graph) {
    graphed_.emplace(
        model_, optimizer_, [this](const std::vector<torch::Tensor>& in) {
          return loss_of(in[0], in[1]);
        });
  }
  if (ddp::rank() == 0 && !options.checkpoint.folder.empty()) {
    std::filesystem::create_directories(options.checkpoint.folder);
  }
}

std::optional<Score> Training::run() {
  const auto& recipe = options_.recipe;
  is_to_stop();  // registers this program's interest with ddprun
  if (options_.checkpoint.resume) {
    resume();
  }
  std::optional<Score> score;
  for (int64_t epoch = checkpoint_.epoch(); epoch < recipe.epochs; ++epoch) {
    const Stopwatch time;
    const auto loss = train_epoch(epoch);
    if (loss) {
      score = test(model_, dataset_.test, share(recipe));
      print_on_first(format(
          "epoch %ld/%ld: loss %.4f, test loss %.4f, test accuracy %.2f %%, "
          "%.1f s",
          epoch + 1,
          recipe.epochs,
          *loss,
          score->loss,
          score->percent(),
          time.seconds()));
    }
    save(loss ? epoch + 1 : epoch);
    if (checkpoint_.epoch() < recipe.epochs && is_to_stop()) {
      print_on_first(
          format("stopped after %ld steps, as asked; --resume goes on",
                 checkpoint_.step()));
      return std::nullopt;
    }
  }
  if (graphed_ && graphed_->is_recorded()) {
    print_on_first("trained by a recorded step");
  }
  return score ? *score : test(model_, dataset_.test, share(recipe));
}

void Training::resume() {
  const auto& folder = options_.checkpoint.folder;
  print_on_first(folder_.load(checkpoint_)
                     ? format("resumed from %s after %ld epochs, %ld steps",
                              folder.c_str(),
                              checkpoint_.epoch(),
                              checkpoint_.step())
                     : "no checkpoint in " + folder +
                           ": starting from the beginning");
}

void Training::save(int64_t next_epoch) {
  const auto& folder = options_.checkpoint.folder;
  if (!folder.empty()) {
    folder_.save(checkpoint_.epoch(next_epoch));
    print_on_first(format("checkpoint saved: %s after %ld epochs, %ld steps",
                          folder.c_str(),
                          next_epoch,
                          checkpoint_.step()));
  }
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
  const auto& recipe = options_.recipe;
  const int64_t every = options_.checkpoint.every;
  const int64_t batch_size = share(recipe);
  const auto steps_for = [&](size_t images) {
    return (static_cast<int64_t>(images) + batch_size - 1) / batch_size;
  };
  const int64_t steps = steps_for(sampler_.size());
  auto loader =
      torch::data::make_data_loader(dataset_.train, sampler_, batch_size);
  auto sums = torch::zeros(
      {2}, torch::dtype(torch::kFloat64).device(ddp::local_device()));
  sampler_.set_epoch(epoch);
  model_->train();
  for (const auto& batch : *loader) {
    const int64_t step = steps_for(sampler_.position());
    set_learning_rate(optimizer_,
                      recipe.learning_rate,
                      epoch * steps + step - 1,
                      recipe.epochs * steps);
    const auto loss = train_batch(batch);
    sums[0] += loss * batch.data.size(0);
    sums[1] += batch.data.size(0);

    checkpoint_.step(checkpoint_.step() + 1);
    log(format("epoch %ld/%ld step %ld/%ld",
               epoch + 1,
               recipe.epochs,
               step,
               steps),
        loss);
    if (step == steps) {
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

torch::Tensor Training::loss_of(const torch::Tensor& images,
                                const torch::Tensor& labels) {
  const auto device = ddp::local_device();
  const ddp::AutocastGuard autocast(device.type(), autocast_);
  return torch::cross_entropy_loss(model_->forward(images.to(device)),
                                   labels.to(device));
}

// Makes one step. The gradients of all parts of the batch add up on this rank,
// and the last part's backward pass averages the sums over the ranks. Returns
// the loss of this rank's images.
torch::Tensor Training::train_batch(const torch::data::Example<>& batch) {
  const bool augments = options_.data.kind == DatasetKind::cifar10;
  const auto data = augments ? crop_and_flip(batch.data) : batch.data;
  if (graphed_) {
    return (*graphed_)({data.pin_memory(), batch.target.pin_memory()});
  }
  const auto images = data.chunk(options_.accumulate);
  const auto labels = batch.target.chunk(options_.accumulate);
  auto sum = torch::zeros({}, ddp::local_device());
  optimizer_.zero_grad();
  for (size_t part = 0; part < images.size(); ++part) {
    std::optional<ddp::NoSyncGuard> no_sync;
    if (part + 1 < images.size()) {
      no_sync.emplace(*model_);
    }
    const auto loss = loss_of(images[part], labels[part]) *
                      (static_cast<double>(images[part].size(0)) /
                       static_cast<double>(batch.data.size(0)));
    scaler_.scale(loss).backward();
    sum += loss.detach();
  }
  // Every .grad is now the mean over the ranks.
  if (options_.clip_norm > 0) {
    scaler_.unscale_(optimizer_);
    torch::nn::utils::clip_grad_norm_(model_->parameters(), options_.clip_norm);
  }
  scaler_.step(optimizer_);  // skips the step if a gradient is inf or NaN
  scaler_.update();
  return sum;
}

// Prints the mean loss over the ranks every `--log-every` steps.
void Training::log(const std::string& place, const torch::Tensor& loss) const {
  const int64_t every = options_.report.log_every;
  if (every > 0 && checkpoint_.step() % every == 0) {
    const double mean = ddp::reduce_tensor(loss).item<double>();
    print_on_first(format("%s: loss %.9g", place.c_str(), mean) +
                   (scaler_.is_enabled()
                        ? format(", scale %.9g", scaler_.get_scale())
                        : ""));
  }
}

// Loads the parameters of the newest checkpoint and tests them.
Score test_checkpoint(const TrainOptions& options,
                      const Dataset& dataset,
                      Model& model) {
  ddp::Checkpoint checkpoint(model);
  TORCH_CHECK(ddp::CheckpointFolder(options.checkpoint.folder).load(checkpoint),
              "Expected a checkpoint in ",
              options.checkpoint.folder,
              ", but got none.");
  return test(model, dataset.test, share(options.recipe));
}

void begin(const Dataset& dataset, const Recipe& recipe) {
  const auto shape = dataset.train.shape();
  print_on_first(format("%s: %zu images to train on, %zu to test, %ldx%ldx%ld",
                        dataset.name.c_str(),
                        *dataset.train.size(),
                        *dataset.test.size(),
                        shape.channels,
                        shape.height,
                        shape.width));
  print_on_first(format("%s over %s, rank 0 on %s, %ld images a rank and step",
                        count_of(ddp::world_size(), "rank").c_str(),
                        ddp::process_group()->getBackendName().c_str(),
                        ddp::local_device().str().c_str(),
                        share(recipe)));
}

void run(const TrainOptions& options) {
  const Stopwatch time;
  init_process_group(options.device);
  TORCH_CHECK(!options.graph || ddp::local_device().is_cuda(),
              "Expected a GPU with --graph, but got ",
              ddp::local_device(),
              ".");
  ddp::seed_everything(options.seed);

  const Dataset dataset = load_dataset(options.data);
  const auto network = make_model(options.recipe.model, dataset);
  if (options.no_dropout) {
    remove_dropout(*network);
  }
  network->to(ddp::local_device());
  Model model(network);

  begin(dataset, options.recipe);
  const std::optional<Score> score =
      options.mode == Mode::test ? test_checkpoint(options, dataset, model)
                                 : Training(options, dataset, model).run();
  if (options.report.print_hash) {
    print(format(
        "rank %d: parameters %016lx", ddp::rank(), parameter_hash(*network)));
  }
  if (score) {
    print_on_first(format("test accuracy %s, %s, %.1f s",
                          to_text(*score).c_str(),
                          count_of(ddp::world_size(), "rank").c_str(),
                          time.seconds()));
  }
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = parse_train_options(argc, argv);
  if (const auto* exit = std::get_if<EarlyExit>(&parsed)) {
    return exit->print();
  }
  return ddp::record_errors([&] {
    run(std::get<TrainOptions>(parsed));
    return 0;
  });
}
