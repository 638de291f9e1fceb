#include <limits>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <c10/core/StreamGuard.h>

#include "ddp/amp/autocast.h"
#include "ddp/amp/grad_scaler.h"
#include "ddp/distributed_data_parallel.h"
#include "test/fake_gpu/control.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"
#include "test/gpu/small_integers.h"

// Tests the gradient scaler on GPUs, and over NCCL with one thread and one GPU
// per rank.
namespace ddp {
namespace precision_test {

using test::any_schedule;
using test::fill_with_small_integers;
using test::half_of;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
using test::small_integers;
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

TEST_CASE("autocast over NCCL trains as float where nothing is rounded",
          "[gpu]") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  const bool as_view = GENERATE(false, true);
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    const auto make = [] {
      torch::nn::Sequential net(torch::nn::Linear(6, 16),
                                torch::nn::ReLU(),
                                torch::nn::Linear(16, 2));
      fill_with_small_integers(*net);
      return net;
    };
    auto plain = make();
    auto net = make();
    net->to(rank.device);
    // A stream of the user, with the copies of another step on it.
    const c10::StreamGuard guard(rank.new_stream());
    DistributedDataParallel model(net,
                                  DistributedDataParallelOptions()
                                      .process_group(rank.group)
                                      .gradient_as_bucket_view(as_view)
                                      .first_bucket_cap_mb(0.0001)
                                      .bucket_cap_mb(0.0001));
    for (int step = 1; step <= 3; ++step) {
      const auto rows = small_integers({8, 6}, step, 2);
      const auto slopes = small_integers({8, 2}, 3 * step, 2);
      plain->zero_grad();
      net->zero_grad();
      (plain->forward(rows) * slopes).sum().div(2).backward();
      Tensor loss;
      {
        const AutocastGuard autocast(torch::kCUDA,
                                     AutocastOptions().dtype(dtype));
        const auto output = model->forward(half_of(rows, rank));
        rank.expect(output.scalar_type() == dtype, "the output is not narrow");
        loss = (output.to(torch::kFloat) * half_of(slopes, rank)).sum();
      }
      loss.backward();
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        const auto grad = net->parameters()[i].grad();
        rank.expect(grad.scalar_type() == torch::kFloat, "a narrow gradient");
        rank.expect(grad.cpu().equal(plain->parameters()[i].grad()),
                    c10::str("step ", step, ": gradient ", i));
      }
    }
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
