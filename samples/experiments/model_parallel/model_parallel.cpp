// Model parallelism compared to data parallelism.
//
// Purpose: data parallelism speeds up a model that fits on one device. Every
// device holds all parameters and a part of the batch, and gradients are
// exchanged. Model parallelism is for a model that does not fit on one device.
// Every device holds a part of the parameters and processes the whole batch,
// and activations are exchanged. Alone it is not faster: one device waits while
// the other computes. Micro-batches reduce the waiting. Both can be combined:
// each rank of DistributedDataParallel then uses a pair of devices.
//
//   model_parallel
//   ddprun --nproc-per-node=2 model_parallel
//   ddprun --nproc-per-node=2 model_parallel
//   --devices=cuda:0,cuda:1,cuda:2,cuda:3
#include <ATen/Parallel.h>
#include <ddp/ddp.h>
#include <torch/data/dataloader.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <iostream>

#include "samples/experiments/gather.h"
#include "samples/experiments/gradients.h"
#include "samples/experiments/model_parallel/pipeline.h"
#include "samples/experiments/model_parallel/two_stages.h"
#include "samples/support/command_line.h"
#include "samples/support/datasets.h"
#include "samples/support/devices.h"
#include "samples/support/parameter_hash.h"
#include "samples/support/text.h"

namespace {

using namespace samples;

struct Options {
  std::vector<std::string> devices;
  std::vector<int64_t> micro_batches{1, 2, 4, 8};
  StageSizes sizes;
  int64_t batch_size = 256;
  int64_t rounds = 5;
  int64_t steps = 40;
  double learning_rate = 0.08;
  std::string csv;
  std::string timeline;
};

// Prints a line on rank 0 only.
void say(const std::string& line) {
  if (ddp::rank() == 0) {
    std::cout << line + "\n" << std::flush;
  }
}

int64_t count(const torch::nn::Module& module) {
  int64_t sum = 0;
  for (const auto& parameter : module.parameters()) {
    sum += parameter.numel();
  }
  return sum;
}

// Runs the pipeline on this rank alone and compares it to the undivided
// network.
void show_pipeline(TwoStages& network,
                   const torch::data::Example<>& batch,
                   const Options& options) {
  auto whole = network.undivided(network.devices().first);
  const auto images = batch.data.flatten(1).to(network.devices().first);
  const auto expected = whole->forward(images);
  torch::cross_entropy_loss(expected, batch.target.to(network.devices().first))
      .backward();

  say("\n1. Micro-batches: the second stage works at one while the first works "
      "at the next");
  say("micro-batches  forward ms  of the first  ideal  both at work  backward "
      "ms  difference to the undivided network");
  std::vector<Pass> passes;
  for (const int64_t micro_batches : options.micro_batches) {
    passes.push_back(measure(
        network, batch, micro_batches, options.rounds, options.timeline));
    const Pass& pass = passes.back();
    say(
        format("%13ld %11.2f %11.0f %% %4.0f %% %11.0f %% %12.2f  %.1e scores, "
               "%.1e gradients",
               micro_batches,
               pass.forward,
               100 * pass.forward / passes.front().forward,
               100 * ideal_pipeline_time(2, micro_batches),
               100 * pass.both,
               pass.backward,
               greatest_difference({pass.scores}, {expected.detach()}),
               greatest_difference(pass.gradients, copy_gradients(*whole))));
  }
  say(network.devices().first.is_cpu()
          ? "CPU devices: a thread for each stage, so the cores must be free; "
            "autograd runs the backward pass in one thread, without overlap."
          : "GPUs: both passes overlap when the stages have one each. For "
            "when, see --timeline.");
  if (ddp::rank() == 0 && !options.csv.empty()) {
    write_csv(options.csv, passes);
  }
}

// Batches of the digits in the sampler's order, over any number of epochs.
class Batches {
 public:
  Batches(Images images, int64_t share)
      : images_(std::move(images)),
        share_(static_cast<size_t>(share)),
        sampler_(*images_.size()) {
    sampler_.reset();
  }

  // Returns this rank's images of the next step, and the images of all ranks.
  std::pair<torch::data::Example<>, torch::data::Example<>> next() {
    auto mine = sampler_.next(share_);
    if (!mine) {
      sampler_.set_epoch(sampler_.epoch() + 1);
      sampler_.reset();
      mine = sampler_.next(share_);
    }
    const auto all =
        gather(torch::tensor(std::vector<int64_t>(mine->begin(), mine->end())))
            .flatten();
    const auto* data = all.const_data_ptr<int64_t>();
    return {images_.get_batch(*mine),
            images_.get_batch(std::vector<size_t>(data, data + all.numel()))};
  }

 private:
  Images images_;
  size_t share_;
  ddp::DistributedSampler sampler_;
};

template <typename Module>
double train(Module& module,
             torch::optim::Optimizer& optimizer,
             const torch::Tensor& images,
             const torch::Tensor& target) {
  optimizer.zero_grad();
  const auto scores = module.forward(images);
  const auto loss =
      torch::cross_entropy_loss(scores, target.to(scores.device()));
  loss.backward();
  optimizer.step();
  return loss.template item<double>();
}

// Trains the network under DDP and compares it to the undivided network on the
// images of all ranks.
void show_training(const std::shared_ptr<TwoStages>& network,
                   const Images& images,
                   const Options& options) {
  const int64_t ranks = ddp::world_size();
  const auto device = network->devices().first;
  ddp::DistributedDataParallel model(network);
  // After DDP has broadcast rank 0's values.
  auto whole = network->undivided(device);
  const auto sgd =
      torch::optim::SGDOptions(options.learning_rate).momentum(0.9);
  torch::optim::SGD optimizer(model->parameters(), sgd);
  torch::optim::SGD oracle(whole->parameters(), sgd);
  Batches batches(images, (options.batch_size + ranks - 1) / ranks);

  say(format("\n2. Training on %ld ranks of two stages each", ranks));
  for (int64_t step = 1; step <= options.steps; ++step) {
    const auto [mine, all] = batches.next();
    const double loss = train(*model, optimizer, mine.data, mine.target);
    train(*whole, oracle, all.data.flatten(1).to(device), all.target);
    const double mean =
        ddp::reduce_tensor(torch::tensor(loss, torch::kFloat64)).item<double>();
    if (step % 10 == 0 || step == 1) {
      say(format("step %ld: loss %.6f", step, mean));
    }
  }
  // One write per line, because the ranks share the terminal.
  std::cout << format("rank %d: parameters %016lx\n",
                      ddp::rank(),
                      parameter_hash(*network))
            << std::flush;
  say(format("difference to the undivided network on whole batches: %.1e",
             greatest_difference(network->parameters(), whole->parameters())));
}

void show_traffic(const TwoStages& network, const Options& options) {
  const int64_t ranks = ddp::world_size();
  const int64_t share = (options.batch_size + ranks - 1) / ranks;
  const int64_t parameters = count(network);
  say("\n3. What travels in a step, in bytes");
  say(
      format("between the stages of a rank: %ld activations there, as many "
             "gradients back (grows with the batch)",
             4 * share * options.sizes.width));
  say(
      format("between the ranks: %ld gradients sent by each, 2(p-1)/p of the "
             "parameters (does not grow with the batch)",
             4 * 2 * (ranks - 1) * parameters / ranks));
}

void run(const Options& options) {
  const auto env = ddp::WorkerEnv::read();
  const auto devices = choose_stages(options.devices, env, gpu_count());
  ddp::init_process_group(
      ddp::ProcessGroupOptions()
          .worker_env(env)
          .backend(devices.first.is_cuda() ? "nccl" : "gloo")
          .device(devices.first));
  ddp::seed_everything(0);
  if (devices.first.is_cpu()) {
    // One thread per stage, so that two cores act as the two devices.
    at::set_num_threads(1);
  }
  {
    const auto digits = load_digits(find_digits());
    const auto network = std::make_shared<TwoStages>(options.sizes, devices);
    say(format("stage 1 on %s: %ld parameters; stage 2 on %s: %ld parameters",
               devices.first.str().c_str(),
               count(*network->first()),
               devices.second.str().c_str(),
               count(*network->second())));
    Batches batches(digits.train, options.batch_size);
    show_pipeline(*network, batches.next().first, options);
    show_training(network, digits.train, options);
    show_traffic(*network, options);
  }
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  // Without a GPU, the profiler logs warnings about its absence.
  ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  Options options;
  CommandLine line("model_parallel",
                   "Trains a network whose halves lie on two devices.");
  line.add("--devices",
           options.devices,
           "Two for each rank of this host, as cuda:0,cuda:1 or cpu,cpu (two "
           "GPUs a rank where there are so many, else one, else the CPU)");
  line.add("--micro-batches",
           options.micro_batches,
           "Numbers of them to measure")
      .at_least(1);
  line.add("--width", options.sizes.width, "Of the layers").at_least(1);
  line.add("--layers", options.sizes.layers, "Hidden ones of each stage")
      .at_least(1);
  line.add("--batch-size",
           options.batch_size,
           "Images of a measurement, and of a step over all ranks")
      .at_least(1);
  line.add("--rounds", options.rounds, "Measurements of each").at_least(1);
  line.add("--steps", options.steps, "Steps of the training").at_least(1);
  line.add("--lr", options.learning_rate, "Learning rate").above_zero();
  line.add("--csv", options.csv, "File for the times");
  line.add("--timeline",
           options.timeline,
           "File for a trace of the forward pass with the last number of "
           "micro-batches, of all ranks");
  return line.run(argc, argv, [&] { run(options); });
}
