#include "ddp/join.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"
#include "test/support/catch.h"

// Tests ranks with different numbers of inputs, with one thread and one GPU per
// rank.
namespace ddp {
namespace gpu_join_test {

using test::any_schedule;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
using torch::Tensor;

struct LineImpl : torch::nn::Module {
  LineImpl() {
    weight = register_parameter("weight", torch::ones({3}));
    seen = register_buffer("seen", torch::zeros({1}));
  }
  Tensor forward(const Tensor& x) {
    seen += x;
    return weight * x;
  }
  Tensor weight, seen;
};
TORCH_MODULE(Line);

TEST_CASE("GPUs train on different numbers of inputs", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  const bool by_all = GENERATE(true, false);
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Line net;
    net->to(rank.device);
    DistributedDataParallel model(
        net, DistributedDataParallelOptions().process_group(rank.group));
    torch::optim::SGD optimizer(model->parameters(), 0.125);
    double expected = 1;
    for (int epoch = 0; epoch < 2; ++epoch) {
      Join join({*model}, JoinOptions().divide_by_initial_world_size(by_all));
      for (int step = 0; step < 2 + 3 * rank.rank; ++step) {
        optimizer.zero_grad();
        const double x = 1 + rank.rank + step;
        model->forward(torch::full({1}, x, rank.device)).sum().backward();
        optimizer.step();
      }
      join.finish();
      for (int step = 0; step < 5; ++step) {
        const double sum = step < 2 ? 3 + 2 * step : 2 + step;
        expected -= 0.125 * sum / (by_all || step < 2 ? 2 : 1);
      }
      rank.expect_close(net->weight, torch::full({3}, expected), "the weight");
      // Rank 1 has processed the inputs 2 to 6 in each epoch.
      rank.expect_close(
          net->seen, torch::full({1}, 20.0 * (epoch + 1)), "the buffer");
    }
    // Until all pass outcomes have arrived.
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      model->forward(torch::full({1}, 1.0 + rank.rank, rank.device))
          .sum()
          .backward();
      rank.expect_close(
          net->weight.grad(), torch::full({3}, 1.5), "the gradient");
      optimizer.step();
    }
  });
}

}  // namespace gpu_join_test
}  // namespace ddp
