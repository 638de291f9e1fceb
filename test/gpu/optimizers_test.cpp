#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <c10/core/StreamGuard.h>

#include "ddp/distributed_data_parallel.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "test/ddp/optim/optimizers.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"

// Compares optimizers over NCCL to LibTorch's on the CPU with all rows.
namespace ddp {
namespace gpu_optimizers_test {

using test::any_schedule;
using test::Groups;
using test::has_gpus;
using test::make_optimizer;
using test::NcclRank;
using test::numbers;
using test::Optimizer;
using test::run_nccl_ranks;

torch::nn::Sequential net_on(c10::Device device) {
  torch::nn::Sequential net(torch::nn::Linear(6, 16),
                            torch::nn::Tanh(),
                            torch::nn::Linear(16, 16),
                            torch::nn::Tanh(),
                            torch::nn::Linear(16, 2));
  const c10::NoGradGuard no_grad;
  uint64_t seed = 0;
  for (auto& param : net->parameters()) {
    param.copy_(numbers(param.sizes(), seed++) / 4);
  }
  net->to(device);
  return net;
}

TEST_CASE("fused and sharded over NCCL", "[gpu]") {
  const auto way = GENERATE(as<std::string>(), "fused", "sharded");
  const auto kind = GENERATE(as<std::string>(), "sgd", "adamw");
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    auto plain = net_on(c10::kCPU);
    auto net = net_on(rank.device);
    const c10::StreamGuard guard(rank.new_stream());
    const auto alone = make_optimizer(kind, Groups{plain->parameters()});
    const auto name = way == "fused" ? "fused " + kind : kind;
    const auto make = [&](const Groups& groups) {
      return make_optimizer(name, groups);
    };
    std::unique_ptr<Optimizer> optimizer;
    if (way == "sharded") {
      optimizer = std::make_unique<ZeroRedundancyOptimizer>(
          net->parameters(), make, rank.group);
    } else {
      optimizer = make(Groups{net->parameters()});
    }
    const auto options = DistributedDataParallelOptions()
                             .process_group(rank.group)
                             .first_bucket_cap_mb(0.0003)
                             .bucket_cap_mb(0.0005);
    DistributedDataParallel model(net, options);
    for (int step = 0; step < 4; ++step) {
      const auto batch = numbers({8, 6}, 100 + step);
      const auto mine = batch.slice(0, 4 * rank.rank, 4 * rank.rank + 4);
      alone->zero_grad();
      plain->forward(batch).pow(2).mean().backward();
      alone->step();
      optimizer->zero_grad(/*set_to_none=*/step % 2 == 0);
      model->forward(mine.to(rank.device)).pow(2).mean().backward();
      optimizer->step();
    }
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      rank.expect_close(net->parameters()[i],
                        plain->parameters()[i],
                        "parameter " + std::to_string(i));
    }
  });
}

}  // namespace gpu_optimizers_test
}  // namespace ddp
