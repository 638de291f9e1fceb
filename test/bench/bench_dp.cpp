// Runs steps of DataParallel on the CPU and of alternative implementations, for
// dp.py.
#include <iostream>

#include <torch/nn/parallel/data_parallel.h>

#include "dp/dp.h"
#include "test/bench/blocks.h"
#include "test/bench/training_arm.h"

namespace ddp::bench {
namespace {

using torch::Tensor;

std::vector<torch::Device> devices(size_t replicas) {
  return std::vector<torch::Device>(replicas, torch::kCPU);
}

/// LibTorch's data_parallel, with chunk and cat instead of its own functions
/// for splitting and joining tensors, which support GPUs only.
std::unique_ptr<Arm> libtorch_arm(const Workload& workload, size_t replicas) {
  Chain net(workload);
  return training_arm(
      workload, *net, [net, on = devices(replicas)](const Tensor& x) {
        namespace parallel = torch::nn::parallel;
        auto copies = parallel::replicate(net, on);
        const auto chunks = x.chunk(static_cast<int64_t>(on.size()));
        return torch::cat(parallel::parallel_apply(copies, chunks, on));
      });
}

/// Persistent replicas that run one after the other, each with all intra-op
/// threads.
class LoopArm : public Arm {
 public:
  LoopArm(const Workload& workload, size_t replicas)
      : net_(workload),
        data_(input(workload)),
        target_(target(workload)),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(kRate)) {
    for (size_t i = 0; i < replicas; ++i) {
      nets_.push_back(
          i == 0 ? net_.ptr()
                 : std::dynamic_pointer_cast<ChainImpl>(net_->clone()));
    }
  }

  void step() override {
    const auto count = static_cast<int64_t>(nets_.size());
    const auto chunks = data_.chunk(count);
    const auto targets = target_.chunk(count);
    for (size_t i = 1; i < nets_.size(); ++i) {
      const torch::NoGradGuard no_grad;
      auto copies = nets_[i]->parameters();
      at::_foreach_copy_(copies, net_->parameters());
    }
    for (size_t i = 0; i < nets_.size(); ++i) {
      (torch::mse_loss(nets_[i]->forward(chunks[i]), targets[i]) / count)
          .backward();
    }
    for (size_t i = 1; i < nets_.size(); ++i) {
      auto gradients = gradients_of(*net_);
      at::_foreach_add_(gradients, gradients_of(*nets_[i]));
      nets_[i]->zero_grad();
    }
    optimizer_.step();
    optimizer_.zero_grad();
  }

 private:
  static std::vector<Tensor> gradients_of(const torch::nn::Module& net) {
    std::vector<Tensor> gradients;
    for (const auto& parameter : net.parameters()) {
      gradients.push_back(parameter.grad());
    }
    return gradients;
  }

  Chain net_;
  Tensor data_, target_;
  torch::optim::SGD optimizer_;
  std::vector<std::shared_ptr<ChainImpl>> nets_;
};

std::unique_ptr<Arm> make_dp_arm(const std::string& name,
                                 const Workload& workload,
                                 size_t replicas) {
  if (name == "plain") {
    return model_arm(workload, Chain(workload));
  }
  if (name == "ours") {
    return model_arm(
        workload,
        dp::DataParallel(Chain(workload),
                         dp::DataParallelOptions().devices(devices(replicas))));
  }
  if (name == "libtorch") {
    return libtorch_arm(workload, replicas);
  }
  TORCH_CHECK(name == "loop",
              "Expected the arm plain, ours, libtorch or loop, but got ",
              name);
  return std::make_unique<LoopArm>(workload, replicas);
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: bench_dp mlp|small REPLICAS\n";
    return 2;
  }
  auto workload = ddp::bench::workload(argv[1]);
  const size_t replicas = std::stoul(argv[2]);
  workload.batch *= static_cast<int64_t>(replicas);
  ddp::bench::run_blocks([&](const std::string& name) {
    const std::shared_ptr<ddp::bench::Arm> arm =
        ddp::bench::make_dp_arm(name, workload, replicas);
    return [arm] { arm->step(); };
  });
}
