// One rank of the step time benchmark: runs blocks of steps on command, so that
// the arms alternate. steps.py sends the commands; step_worker.py does the same
// with PyTorch's DDP.
//
// stdin: lines "ARM STEPS". Rank 0 answers each with its duration in seconds.
#include <chrono>
#include <iostream>
#include <map>

#include "ddp/collectives.h"
#include "ddp/process_group.h"
#include "test/bench/arms.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: bench_steps mlp|mlp256|small|resnet|transformer\n";
    return 2;
  }
  ddp::init_process_group();
  const auto workload = ddp::bench::workload(argv[1]);
  std::map<std::string, std::unique_ptr<ddp::bench::Arm>> arms;
  std::string name;
  int64_t steps = 0;
  while (std::cin >> name >> steps) {
    auto& arm = arms[name];
    if (!arm) {
      arm = ddp::bench::make_arm(name, workload, ddp::process_group());
    }
    ddp::barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < steps; ++i) {
      arm->step();
    }
    ddp::barrier();
    const std::chrono::duration<double> time =
        std::chrono::steady_clock::now() - start;
    if (ddp::rank() == 0) {
      std::cout << time.count() << std::endl;
    }
  }
  arms.clear();
  ddp::destroy_process_group();
}
