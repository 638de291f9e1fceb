// Runs steps of optimizers alone, fused ones and LibTorch's, for optimizers.py.
#include <iostream>

#include "ddp/optim/fused.h"
#include "test/bench/blocks.h"
#include "test/bench/training_arm.h"

namespace ddp::bench {
namespace {

/// Returns a step with persistent gradients, as in DistributedDataParallel.
template <class Kind, class Options>
Step stepper(const Workload& workload, const Options& options) {
  const Chain net(workload);
  for (const auto& param : net->parameters()) {
    param.mutable_grad() = torch::full_like(param, 1e-3).detach();
  }
  return [optimizer = std::make_shared<Kind>(net->parameters(), options)] {
    optimizer->step();
  };
}

Step make_stepper(const std::string& arm, const Workload& workload) {
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
  ddp::bench::run_blocks([&](const std::string& arm) {
    return ddp::bench::make_stepper(arm, workload);
  });
}
