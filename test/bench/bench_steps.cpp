// One rank of the step time benchmark: runs blocks of steps on command, so that
// the arms alternate. steps.py sends the commands; step_worker.py does the same
// with PyTorch's DDP.
//
// stdin: lines "ARM STEPS". Rank 0 answers each with its duration in seconds.
// With an arm and a number of steps as arguments, one block runs:
//
//   ddprun --nproc-per-node=2 bench_steps mlp ours 20
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include <torch/cuda.h>

#include "ddp/collectives.h"
#include "ddp/process_group.h"
#include "test/bench/arms.h"

namespace {

/// Waits for the own GPU, if there is one, and for all ranks.
void meet() {
  if (ddp::local_device().is_cuda()) {
    torch::cuda::synchronize();
  }
  ddp::barrier();
}

/// Returns the duration in seconds.
double run(ddp::bench::Arm& arm, int64_t steps) {
  meet();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < steps; ++i) {
    arm.step();
  }
  meet();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) {
    std::cerr << "usage: bench_steps mlp|mlp256|wide|small|resnet|resnet8|"
                 "transformer [ARM STEPS]\n";
    return 2;
  }
  ddp::init_process_group();
  auto workload = ddp::bench::workload(argv[1]);
  workload.device = ddp::local_device();
  std::map<std::string, std::unique_ptr<ddp::bench::Arm>> arms;
  const auto answer = [&](const std::string& name, int64_t steps) {
    auto& arm = arms[name];
    if (!arm) {
      arm = ddp::bench::make_arm(name, workload, ddp::process_group());
    }
    const double seconds = run(*arm, steps);
    if (ddp::rank() == 0) {
      std::cout << seconds << std::endl;
    }
  };
  if (argc == 4) {
    answer(argv[2], std::stoll(argv[3]));
  } else {
    std::string name;
    for (int64_t steps = 0; std::cin >> name >> steps;) {
      answer(name, steps);
    }
  }
  arms.clear();
  ddp::destroy_process_group();
}
