// One rank of the memory benchmark of sharding.py: trains 16 x Linear(1024)
// with AdamW, by DistributedDataParallel or by FullyShardedDataParallel. Rank 0
// prints the bytes of the parameters, and the memory that the training adds to
// all ranks together, both in MB.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>

#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/fully_sharded_data_parallel.h"
#include "ddp/process_group.h"
#include "test/bench/networks.h"

namespace {

const ddp::bench::Workload kWorkload{.layers = 16, .width = 1024, .batch = 8};

/// Returns the memory of this process in MB. A page that several processes
/// share counts in equal parts.
double memory() {
  std::ifstream file("/proc/self/smaps_rollup");
  double kilobytes = 0;
  for (std::string word; file >> word;) {
    if (double value = 0;
        (word == "Pss_Anon:" || word == "Pss_Shmem:") && file >> value) {
      kilobytes += value;
    }
  }
  return kilobytes * 1.024e-3;
}

/// Returns the largest memory after a forward, a backward pass or a step.
template <typename Model>
double train(Model& model) {
  torch::optim::AdamW optimizer(model->parameters());
  double peak = 0;
  for (int step = 0; step < 8; ++step) {
    ddp::barrier();
    optimizer.zero_grad();
    const auto loss =
        torch::mse_loss(model->forward(ddp::bench::input(kWorkload)),
                        ddp::bench::target(kWorkload));
    peak = std::max(peak, memory());
    loss.backward();
    peak = std::max(peak, memory());
    optimizer.step();
    peak = std::max(peak, memory());
  }
  return peak;
}

double train_as(const std::string& name) {
  const ddp::bench::Chain net(kWorkload);
  if (name == "sharded") {
    ddp::FullyShardedDataParallel model(net);
    return train(model);
  }
  ddp::DistributedDataParallel model(net);
  return train(model);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: bench_sharding ours|sharded\n";
    return 2;
  }
  ddp::init_process_group();
  torch::nn::Linear warm_up(64, 64);
  warm_up(torch::ones({4, 64})).sum().backward();
  ddp::barrier();
  const double before = memory();
  const auto all = ddp::reduce_tensor(
      torch::tensor(train_as(argv[1]) - before, torch::kDouble),
      ddp::Reduction::sum);
  if (ddp::rank() == 0) {
    const auto parameters =
        kWorkload.layers * kWorkload.width * (kWorkload.width + 1);
    std::cout << 4e-6 * parameters << ' ' << all.item<double>() << std::endl;
  }
  ddp::destroy_process_group();
}
