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
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "samples/experiments/two_stages.h"
#include "samples/support/command_line.h"
#include "samples/support/datasets.h"
#include "samples/support/devices.h"
#include "samples/support/gradients.h"
#include "samples/support/parameter_hash.h"
#include "samples/support/spread.h"
#include "samples/support/step_times.h"
#include "samples/support/stopwatch.h"
#include "samples/support/text.h"
#include "samples/support/trace.h"

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

int64_t count(const torch::nn::Module& module) {
  int64_t sum = 0;
  for (const auto& parameter : module.parameters()) {
    sum += parameter.numel();
  }
  return sum;
}

// Measurements of passes through two stages with one number of micro-batches.
struct Pass {
  int64_t micro_batches;
  double forward;  // milliseconds, median over the rounds
  double backward;
  double both;  // share of a forward in which both stages compute
  torch::Tensor scores;
  std::vector<torch::Tensor> gradients;
};

void wait_for(const StageDevices& devices) {
  synchronize(devices.first);
  synchronize(devices.second);
}

// Returns the share of the time in which both stages compute. The timeline
// shows a GPU's work at the time of its execution, not of its launch.
double both_at_work(TwoStages& network,
                    const torch::Tensor& images,
                    const std::string& timeline) {
  Profiler profiler(network.devices().first);
  network.forward(images);
  wait_for(network.devices());
  const auto events = profiler.stop();
  if (!timeline.empty()) {
    save_timeline(timeline, events);
  }
  const auto first = scopes(events, kFirstStage);
  const auto second = scopes(events, kSecondStage);
  return static_cast<double>(total_length(intersect(first, second))) /
         static_cast<double>(second.back().end - first.front().begin);
}

// Measures passes with this number of micro-batches on this rank alone.
Pass measure(TwoStages& network,
             const torch::data::Example<>& batch,
             int64_t micro_batches,
             const Options& options) {
  std::vector<double> forward, backward;
  torch::Tensor scores;
  const auto target = batch.target.to(network.devices().second);
  network.micro_batches(micro_batches);
  for (int64_t round = 0; round <= options.rounds; ++round) {
    network.zero_grad();
    const Stopwatch time;
    scores = network.forward(batch.data);
    const auto loss = torch::cross_entropy_loss(scores, target);
    wait_for(network.devices());
    const double middle = time.seconds();
    loss.backward();
    wait_for(network.devices());
    if (round > 0) {  // the first round is a warm-up
      forward.push_back(1000 * middle);
      backward.push_back(1000 * (time.seconds() - middle));
    }
  }
  return {micro_batches,
          spread(forward).median,
          spread(backward).median,
          both_at_work(network, batch.data, options.timeline),
          scores.detach(),
          copy_gradients(network)};
}

void write_csv(const std::string& file, const std::vector<Pass>& passes) {
  std::ofstream csv(file);
  csv << "micro_batches,forward_ms,ideal,both_at_work,backward_ms\n";
  for (const auto& pass : passes) {
    csv << pass.micro_batches << ',' << pass.forward << ','
        << ideal_pipeline_time(2, pass.micro_batches) << ',' << pass.both << ','
        << pass.backward << '\n';
  }
  csv.close();
  TORCH_CHECK(csv, "Expected to write ", file, ", but cannot.");
}

// Returns the greatest elementwise difference.
double greatest_difference(const std::vector<torch::Tensor>& a,
                           const std::vector<torch::Tensor>& b) {
  double greatest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    greatest = std::max(greatest,
                        (a[i].cpu() - b[i].cpu()).abs().max().item<double>());
  }
  return greatest;
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

  print_on_first(
      "\n1. Micro-batches: the second stage works at one while the first works "
      "at the next");
  print_on_first(
      "micro-batches  forward ms  of the first  ideal  both at work  backward "
      "ms  difference to the undivided network");
  std::vector<Pass> passes;
  for (const int64_t micro_batches : options.micro_batches) {
    passes.push_back(measure(network, batch, micro_batches, options));
    const Pass& pass = passes.back();
    print_on_first(
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
  print_on_first(
      network.devices().first.is_cpu()
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
    const auto all = torch::cat(ddp::all_gather(
        torch::tensor(std::vector<int64_t>(mine->begin(), mine->end()))));
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

  print_on_first(
      format("\n2. Training on %ld ranks of two stages each", ranks));
  for (int64_t step = 1; step <= options.steps; ++step) {
    const auto [mine, all] = batches.next();
    const double loss = train(*model, optimizer, mine.data, mine.target);
    train(*whole, oracle, all.data.flatten(1).to(device), all.target);
    const double mean =
        ddp::reduce_tensor(torch::tensor(loss, torch::kFloat64)).item<double>();
    if (step % 10 == 0 || step == 1) {
      print_on_first(format("step %ld: loss %.6f", step, mean));
    }
  }
  print(format(
      "rank %d: parameters %016lx", ddp::rank(), parameter_hash(*network)));
  print_on_first(
      format("difference to the undivided network on whole batches: %.1e",
             greatest_difference(network->parameters(), whole->parameters())));
}

void show_traffic(const TwoStages& network, const Options& options) {
  const int64_t ranks = ddp::world_size();
  const int64_t share = (options.batch_size + ranks - 1) / ranks;
  const int64_t parameters = count(network);
  print_on_first("\n3. What travels in a step, in bytes");
  print_on_first(
      format("between the stages of a rank: %ld activations there, as many "
             "gradients back (grows with the batch)",
             4 * share * options.sizes.width));
  print_on_first(
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
    print_on_first(
        format("stage 1 on %s: %ld parameters; stage 2 on %s: %ld parameters",
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
