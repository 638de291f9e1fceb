// Ranks without a launcher: the program starts its own ranks.
//
// Purpose: shows ddp::spawn, which runs a function in several processes of this
// host. Each process has a rank and all settings that init_process_group needs.
// ddp::spawn returns when all processes have finished, and throws if one fails.
// Here the ranks fit a line, each rank to points of its own.
//
//   spawn --ranks=4
//   spawn --ranks=3 --fail-rank=2
#include <ddp/ddp.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <unistd.h>

#include <optional>

#include "samples/support/command_line.h"
#include "samples/support/devices.h"
#include "samples/support/text.h"

namespace {

constexpr double kSlope = 3;
constexpr int kSteps = 200;

struct Options {
  int ranks = 2;
  std::optional<int> fail_rank;
  samples::DeviceOptions device;
};

// Returns the slope of the line through all ranks' points.
double fit_line(bool fails) {
  const auto device = ddp::local_device();
  torch::nn::Linear line(1, 1);
  line->to(device);
  ddp::DistributedDataParallel model(line);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto x = torch::rand({32, 1}).to(device) * 2 - 1;
  for (int step = 0; step < kSteps; ++step) {
    TORCH_CHECK(!fails || step < kSteps / 2,
                "it fails because --fail-rank=",
                ddp::rank(),
                " says so");
    optimizer.zero_grad();
    torch::mse_loss(model->forward(x), kSlope * x).backward();
    optimizer.step();
  }
  return line->weight.item<double>();
}

// Runs one rank; `options` is the rank's own copy.
void run_rank(const Options& options, int local_rank) {
  samples::init_process_group(options.device);
  ddp::seed_everything(0);
  const double slope = fit_line(local_rank == options.fail_rank);
  samples::print(
      samples::format("rank %d of %d, process %d of parent %d: slope %.4f",
                      ddp::rank(),
                      ddp::world_size(),
                      ::getpid(),
                      ::getppid(),
                      slope));
  ddp::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  samples::CommandLine line("spawn", "Starts its own ranks, which fit a line.");
  line.add("--ranks", options.ranks, "Processes to start");
  line.add("--fail-rank", options.fail_rank, "Rank that is to throw");
  samples::add_device_options(line, options.device);
  return line.run(argc, argv, [&] {
    ddp::spawn([&](int local_rank) { run_rank(options, local_rank); },
               options.ranks);
    samples::print(
        samples::format("all ranks of process %d are done", ::getpid()));
  });
}
