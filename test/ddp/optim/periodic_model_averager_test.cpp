#include "ddp/optim/periodic_model_averager.h"

#include <torch/types.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/no_exchange.h"
#include "ddp/exchanges/switch_exchange.h"
#include "ddp/traffic.h"
#include "test/support/catch.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace periodic_model_averager_test {

using Catch::Contains;
using test::all_equal;
using test::backward;
using test::gauss;
using test::Group;
using test::leaf;
using test::run_ranks;
using Options = DistributedDataParallelOptions;
using AveragerOptions = PeriodicModelAveragerOptions;

TEST_CASE("parameters are averaged every few steps", "[averager]") {
  const int size = GENERATE(1, 2, 3, 4);
  const int64_t warmup = GENERATE(0, 2);
  run_ranks(size, [&](const Group& group) {
    const auto counted = c10::make_intrusive<CountingBackend>(group);
    PeriodicModelAverager averager(
        AveragerOptions(3).warmup_steps(warmup).process_group(counted));
    auto fine = torch::zeros({5}, torch::kDouble).requires_grad_();
    auto image = torch::zeros({2, 3, 4, 5})
                     .contiguous(torch::MemoryFormat::ChannelsLast)
                     .requires_grad_();
    auto frozen = torch::full({3}, group->getRank());
    for (int64_t step = 0; step < 10; ++step) {
      const double mine = step * (group->getRank() + 1.0);
      {
        const torch::NoGradGuard no_grad;
        fine.fill_(mine);
        image.fill_(-mine);
      }
      counted->take();
      const bool averages = step >= warmup && (step - warmup) % 3 == 0;
      TORCH_CHECK(averager.average_parameters({fine, image, frozen}) ==
                  averages);
      const double value = averages ? step * gauss(size) / size : mine;
      TORCH_CHECK((fine - value).abs().lt(1e-12).all().item<bool>(), fine);
      TORCH_CHECK((image + value).abs().lt(1e-5).all().item<bool>());
      TORCH_CHECK(all_equal(frozen, group->getRank()));
      const int64_t bytes = averages && size > 1 ? 5 * 8 + 120 * 4 : 0;
      TORCH_CHECK(counted->take().all_reduce == bytes);
      TORCH_CHECK(averager.steps() == step + 1);
    }
    PeriodicModelAverager resumed(
        AveragerOptions(3).warmup_steps(warmup).process_group(counted).steps(
            averager.steps()));
    TORCH_CHECK(resumed.average_parameters({fine}) == ((10 - warmup) % 3 == 0));
  });
}

TEST_CASE("post-local SGD averages gradients, then parameters",
          "[averager][switch]") {
  const int size = 3;
  run_ranks(size, [&](const Group& group) {
    const int64_t warmup = 2;
    auto weight = torch::zeros({4}, torch::kDouble).requires_grad_();
    Reducer reducer({{"w", weight}},
                    group,
                    Options().exchange(std::make_shared<SwitchExchange>(
                        std::make_shared<AllReduce>(group),
                        warmup,
                        std::make_shared<NoExchange>())));
    PeriodicModelAverager averager(
        AveragerOptions(2).warmup_steps(warmup).process_group(group));
    double all = 0;    // where the ranks have met
    double since = 0;  // what this rank has added
    for (int64_t step = 0; step < 7; ++step) {
      weight.mutable_grad().reset();
      const double slope = group->getRank() + 1.0;
      backward(reducer, weight.sum() * slope);
      {
        const torch::NoGradGuard no_grad;
        weight += weight.grad();
      }
      const bool averages = averager.average_parameters({weight});
      if (step < warmup) {
        all += gauss(size) / size;
      } else {
        since += slope;
      }
      if (averages) {
        all += since / slope * gauss(size) / size;
        since = 0;
      }
      TORCH_CHECK((weight - (all + since)).abs().lt(1e-9).all().item<bool>(),
                  step,
                  weight);
    }
  });
}

TEST_CASE("periods that make no sense are refused", "[averager][errors]") {
  CHECK_THROWS_WITH(PeriodicModelAverager(AveragerOptions(0)),
                    Contains("to be positive, but got 0"));
  CHECK_THROWS_WITH(PeriodicModelAverager(AveragerOptions(1).warmup_steps(-1)),
                    Contains("but got -1 and 0"));
}

}  // namespace periodic_model_averager_test
}  // namespace ddp
