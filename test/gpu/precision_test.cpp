#include <limits>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/amp/grad_scaler.h"
#include "test/fake_gpu/control.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"

// The gradient scaler on GPUs, and over NCCL with a thread and a GPU a rank.
namespace ddp {
namespace precision_test {

using test::any_schedule;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
using torch::Tensor;

constexpr double kInf = std::numeric_limits<double>::infinity();

torch::nn::Sequential make_net(c10::Device device) {
  torch::nn::Sequential net(
      torch::nn::Linear(6, 16), torch::nn::Tanh(), torch::nn::Linear(16, 2));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    const auto places = torch::arange(parameter.numel()).remainder(7).sub(3);
    parameter.copy_(places.div(8).view(parameter.sizes()));
  }
  net->to(device);
  return net;
}

TEST_CASE("ranks over NCCL agree on gradients of their own", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [](const NcclRank& rank) {
    auto weight = torch::zeros({3}, rank.device).requires_grad_();
    torch::optim::SGD optimizer(std::vector<Tensor>{weight}, 1.0);
    GradScaler scaler(
        GradScalerOptions().init_scale(8).process_group(rank.group));
    for (int step = 0; step < 4; ++step) {
      const bool is_bad = step % 2 == 1;
      const bool is_mine = is_bad && rank.rank == step / 2;
      optimizer.zero_grad();
      scaler.scale((weight * (is_mine ? kInf : 1.0)).sum()).backward();
      rank.expect(scaler.step(optimizer) == !is_bad, "a wrong step");
      scaler.update();
    }
    rank.expect_close(weight, torch::full({3}, -2.0), "the weight");
    rank.expect(scaler.get_scale() == 2, "a wrong scale");
  });
}

TEST_CASE("a scaler waits for the GPU once an optimizer", "[gpu][stand-in]") {
  REQUIRE(has_gpus(1));
  INFO(any_schedule());
  const c10::Device device(c10::kCUDA, 0);
  auto net = make_net(device);
  torch::optim::SGD optimizer(net->parameters(), 0.125);
  GradScaler scaler(GradScalerOptions().init_scale(8));
  const auto rows = torch::ones({4, 6}, device);
  const auto train = [&] {
    optimizer.zero_grad();
    scaler.scale(net->forward(rows).pow(2).mean()).backward();
    scaler.unscale_(optimizer);
    const auto before = fake_gpu::counts().host_synchronizes();
    scaler.step(optimizer);
    scaler.update();
    return before;
  };
  train();
  fake_gpu::reset_counts();
  CHECK(train() == 0);
  CHECK(fake_gpu::counts().host_synchronizes() == 1);
  CHECK(scaler.get_scale() == 8);
}

}  // namespace precision_test
}  // namespace ddp
