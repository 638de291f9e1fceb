// Compares a step of DDP over ddp::mpi_group with the loop that reduces each
// gradient by an MPI_Allreduce of its own, in interleaved rounds, and with no
// reduction at all, which no way to reduce can beat:
//
//   mpirun -n 2 bench_mpi_steps_openmpi [ROUNDS]
//
// Prints a line for each network, way and round: the time as a part of the
// loop's.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "ddp/ddp.h"
#include "ddp/mpi_group.h"

namespace {

torch::nn::Sequential make_net(int layers, int64_t width) {
  torch::nn::Sequential net;
  for (int i = 0; i < layers; ++i) {
    net->push_back(torch::nn::Linear(width, width));
  }
  return net;
}

/// A training of its own network.
struct Training {
  torch::nn::Sequential net;
  torch::optim::SGD optimizer;
  std::function<torch::Tensor(const torch::Tensor&)> forward;
  std::function<void()> reduce = [] {};

  Training(int layers, int64_t width)
      : net(make_net(layers, width)),
        optimizer(net->parameters(), 0.01),
        forward([this](const torch::Tensor& x) { return net->forward(x); }) {}

  void step(const torch::Tensor& input) {
    optimizer.zero_grad(/*set_to_none=*/false);
    forward(input).square().mean().backward();
    reduce();
    optimizer.step();
  }
};

/// Reduces each gradient alone.
void reduce_each(const torch::nn::Sequential& net, int size) {
  for (auto& parameter : net->parameters()) {
    auto gradient = parameter.grad();
    MPI_Allreduce(MPI_IN_PLACE,
                  gradient.data_ptr<float>(),
                  static_cast<int>(gradient.numel()),
                  MPI_FLOAT,
                  MPI_SUM,
                  MPI_COMM_WORLD);
    gradient.div_(size);
  }
}

/// Returns the seconds of a step, the mean over some.
double seconds_of(Training& training, const torch::Tensor& input) {
  constexpr int kSteps = 5;
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) {
    training.step(input);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - start;
  return taken.count() / kSteps;
}

void compare(const std::string& name, int layers, int64_t width, int rounds) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const auto group = ddp::mpi_group(MPI_COMM_WORLD);
  const auto options =
      ddp::DistributedDataParallelOptions().process_group(group);
  Training loop(layers, width);
  loop.reduce = [&] { reduce_each(loop.net, size); };
  Training alone(layers, width);
  Training plain(layers, width);
  ddp::DistributedDataParallel plain_model(plain.net, options);
  plain.forward = [&](const auto& x) { return plain_model->forward(x); };
  Training views(layers, width);
  ddp::DistributedDataParallel view_model(
      views.net,
      ddp::DistributedDataParallelOptions(options).gradient_as_bucket_view(
          true));
  views.forward = [&](const auto& x) { return view_model->forward(x); };
  const std::vector<std::pair<const char*, Training*>> arms{
      {"ddp", &plain},
      {"ddp, gradient_as_bucket_view", &views},
      {"no reduction", &alone}};

  const auto input = torch::randn({16, width});
  for (int round = -1; round < rounds; ++round) {  // the first one is dropped
    const bool is_first = round % 2 == 0;
    double of_loop = is_first ? seconds_of(loop, input) : 0;
    std::vector<double> seconds;
    for (const auto& arm : arms) {
      seconds.push_back(seconds_of(*arm.second, input));
    }
    of_loop = is_first ? of_loop : seconds_of(loop, input);
    for (size_t i = 0; rank == 0 && round >= 0 && i < arms.size(); ++i) {
      std::printf(
          "%s;%s;%.4f\n", name.c_str(), arms[i].first, seconds[i] / of_loop);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  torch::set_num_threads(1);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  compare("500 x Linear(16)", 500, 16, rounds);
  compare("8 x Linear(1024)", 8, 1024, rounds);
  MPI_Finalize();
}
