// Runs steps of optimizers alone, fused ones and LibTorch's, in blocks on
// command, so that the arms alternate. optimizers.py sends the commands.
//
// stdin: lines "ARM STEPS". The answer to each is its duration in seconds.
#include <chrono>
#include <functional>
#include <iostream>
#include <map>

#include "ddp/optim/fused.h"
#include "test/bench/training_arm.h"

namespace ddp::bench {
namespace {

/// Returns a step with persistent gradients, as in DistributedDataParallel.
template <class Kind, class Options>
std::function<void()> stepper(const Workload& workload,
                              const Options& options) {
  const Chain net(workload);
  for (const auto& param : net->parameters()) {
    param.mutable_grad() = torch::full_like(param, 1e-3).detach();
  }
  return [optimizer = std::make_shared<Kind>(net->parameters(), options)] {
    optimizer->step();
  };
}

std::function<void()> make_stepper(const std::string& arm,
                                   const Workload& workload) {
  using namespace torch::optim;
  const auto momentum = SGDOptions(kRate).momentum(0.9);
  if (arm == "SGD") {
    return stepper<SGD>(workload, SGDOptions(kRate));
  }
  if (arm == "fused_SGD") {
    return stepper<FusedSGD>(workload, SGDOptions(kRate));
  }
  if (arm == "SGD_with_momentum") {
    return stepper<SGD>(workload, momentum);
  }
  if (arm == "fused_SGD_with_momentum") {
    return stepper<FusedSGD>(workload, momentum);
  }
  if (arm == "Adam") {
    return stepper<Adam>(workload, AdamOptions(kRate));
  }
  if (arm == "fused_Adam") {
    return stepper<FusedAdam>(workload, AdamOptions(kRate));
  }
  if (arm == "AdamW") {
    return stepper<AdamW>(workload, AdamWOptions(kRate));
  }
  TORCH_CHECK(arm == "fused_AdamW", "Expected an optimizer, but got ", arm);
  return stepper<FusedAdamW>(workload, AdamWOptions(kRate));
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: bench_optimizers mlp|small\n";
    return 2;
  }
  const auto workload = ddp::bench::workload(argv[1]);
  std::map<std::string, std::function<void()>> arms;
  std::string name;
  int64_t steps = 0;
  while (std::cin >> name >> steps) {
    auto& step = arms[name];
    if (!step) {
      step = ddp::bench::make_stepper(name, workload);
    }
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < steps; ++i) {
      step();
    }
    const std::chrono::duration<double> time =
        std::chrono::steady_clock::now() - start;
    std::cout << time.count() << std::endl;
  }
}
