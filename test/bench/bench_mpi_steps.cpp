// Compares a step of DDP over ddp::mpi_group with the loop that reduces each
// gradient by an MPI_Allreduce of its own, in interleaved rounds:
//
//   mpirun -n 2 bench_mpi_steps_openmpi [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
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

/// Returns the seconds of a step, the mean over some.
template <typename Step>
double seconds_of(const Step& step) {
  constexpr int kSteps = 10;
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) {
    step();
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
  auto plain = make_net(layers, width);
  auto wrapped = make_net(layers, width);
  ddp::DistributedDataParallel model(
      wrapped,
      ddp::DistributedDataParallelOptions().process_group(
          ddp::mpi_group(MPI_COMM_WORLD)));
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.01);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  const auto input = torch::randn({16, width});
  const auto loop = [&] {
    plain_optimizer.zero_grad(/*set_to_none=*/false);
    plain->forward(input).square().mean().backward();
    for (auto& parameter : plain->parameters()) {
      auto gradient = parameter.grad();
      MPI_Allreduce(MPI_IN_PLACE,
                    gradient.data_ptr<float>(),
                    static_cast<int>(gradient.numel()),
                    MPI_FLOAT,
                    MPI_SUM,
                    MPI_COMM_WORLD);
      gradient.div_(size);
    }
    plain_optimizer.step();
  };
  const auto ddp_step = [&] {
    optimizer.zero_grad(/*set_to_none=*/false);
    model->forward(input).square().mean().backward();
    optimizer.step();
  };
  seconds_of(loop);
  seconds_of(ddp_step);
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    const bool is_first = round % 2 == 0;
    const double first = is_first ? seconds_of(loop) : seconds_of(ddp_step);
    const double second = is_first ? seconds_of(ddp_step) : seconds_of(loop);
    ratios.push_back(is_first ? second / first : first / second);
  }
  std::sort(ratios.begin(), ratios.end());
  if (rank == 0) {
    std::printf("%-20s ddp / loop: median %.3f, from %.3f to %.3f, %d rounds\n",
                name.c_str(),
                ratios[ratios.size() / 2],
                ratios.front(),
                ratios.back(),
                rounds);
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
