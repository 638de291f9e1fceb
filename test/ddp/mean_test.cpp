
#include <ATen/ops/embedding.h>
#include <torch/types.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/no_exchange.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/exchanges/shared_memory_all_reduce.h"
#include "ddp/job/collectives.h"
#include "ddp/reduce/detail/pass_mark.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/fake_backend.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace mean_test {

using Catch::Contains;
using test::all_equal;
using test::backward;
using test::FakeBackend;
using test::gauss;
using test::Group;
using test::leaf;
using test::run_ranks;
using test::try_ranks;
using Options = DistributedDataParallelOptions;

TEST_CASE("gradients are added up, or divided before", "[exchange][mean]") {
  const int size = GENERATE(1, 2, 3, 4);
  const bool mean = GENERATE(true, false);
  const bool shares_memory = GENERATE(true, false);
  run_ranks(size, [&](const Group& group) {
    const auto options = AllReduceOptions().mean(mean);
    const auto exchange =
        shares_memory ? std::make_shared<SharedMemoryAllReduce>(group, options)
                      : std::make_shared<AllReduce>(group, options);
    auto dense = leaf({7});
    auto table = torch::zeros({5, 2}).requires_grad_();
    Reducer reducer({{"dense", dense}, {"table", table, true}},
                    group,
                    Options().exchange(exchange));
    for (int step = 1; step <= 3; ++step) {
      dense.mutable_grad().reset();
      table.mutable_grad().reset();
      const auto row = torch::tensor({int64_t{3}});
      const auto rows = torch::embedding(table, row, -1, false, true);
      backward(reducer,
               step * (group->getRank() + 1.0) * (dense.sum() + rows.sum()));
      const double result = step * gauss(size) / (mean ? size : 1);
      TORCH_CHECK(dense.grad().allclose(torch::full({7}, result)));
      const auto row_3 = table.grad().to_dense()[3];
      TORCH_CHECK(row_3.allclose(torch::full({2}, result)), row_3);
    }
  });
}

TEST_CASE("a mean over some of the ranks", "[exchange][mean]") {
  const auto kind = GENERATE(0, 1, 2, 3);
  run_ranks(4, [&](const Group& group) {
    std::vector<std::shared_ptr<Exchange>> all{
        std::make_shared<AllReduce>(group),
        std::make_shared<AllReduce>(group, AllReduceOptions().mean(false)),
        std::make_shared<PowerSGD>(group),
        std::make_shared<PowerSGD>(group, PowerSGDOptions().start_after(0))};
    auto weight = leaf({8, 10});
    Reducer reducer({{"weight", weight}}, group, Options().exchange(all[kind]));
    reducer.set_functions({.ranks = [] { return 2; }});
    const int rank = group->getRank();  // ranks without inputs give zeros
    for (int step = 1; step <= 2; ++step) {
      weight.mutable_grad().reset();
      backward(reducer, weight.sum() * (rank < 2 ? step * (rank + 1.0) : 0.0));
      const double result = kind == 1 ? step * 3.0 : step * 1.5;
      TORCH_CHECK(weight.grad().allclose(torch::full({8, 10}, result)),
                  weight.grad());
    }
  });
}

TEST_CASE("a missing gradient is told beside a mean of another dtype",
          "[exchange][mean][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    auto used = leaf({3});
    auto other = leaf({3});
    Reducer reducer({{"used", used}, {"other", other}},
                    group,
                    Options().exchange(
                        std::make_shared<CastExchange>(group, torch::kDouble)));
    backward(reducer,
             group->getRank() == 1 ? used.sum() : used.sum() + other.sum());
  });
  CHECK_THAT(errors[1], Contains("got none on rank 1: other;"));
  CHECK_THAT(errors[0], Contains("another rank has left"));
}

TEST_CASE("a mean over no ranks is refused", "[exchange][mean][errors]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  auto weight = leaf({2});
  Reducer reducer({{"weight", weight}}, group);
  reducer.set_functions({.ranks = [] { return 0; }});
  CHECK_THROWS_WITH(
      backward(reducer, weight.sum()),
      Contains("Expected PassFunctions::ranks to return the number of"));
  CHECK_THROWS_WITH(AllReduce(nullptr),
                    Contains("Expected a group of ranks, but got null"));
}

// As docs/ddp_for_pytorch_users.md weighs the losses of the ranks.
TEST_CASE("a loss that is a mean over another number of terms on each rank",
          "[exchange][mean]") {
  const int size = GENERATE(1, 2, 3, 4);
  run_ranks(size, [&](const Group& group) {
    auto weight = leaf({7});
    Reducer reducer({{"weight", weight}}, group);
    const int rank = group->getRank();
    for (int step = 1; step <= 3; ++step) {
      weight.mutable_grad().reset();
      // Rank 0 has no terms in step 2, but in a world of one.
      const auto terms = [&](int of) {
        return step == 2 && of == 0 && size > 1 ? 0.0 : of * 10.0 + step;
      };
      double all = 0;
      double weighted = 0;
      for (int i = 0; i < size; ++i) {
        all += terms(i);
        weighted += terms(i) * (i + 1.0);
      }
      const auto count = torch::tensor(terms(rank));
      const auto loss = (rank + 1.0) * weight.sum();
      backward(reducer,
               loss * (count / reduce_tensor(count, Reduction::mean, group)));
      TORCH_CHECK(weight.grad().allclose(torch::full({7}, weighted / all)),
                  weight.grad());
    }
  });
}

TEST_CASE("no exchange leaves each rank its own gradients and sends none",
          "[exchange][mean]") {
  run_ranks(3, [](const Group& group) {
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    auto a = leaf({1000});
    Reducer reducer({{"a", a}},
                    counted,
                    Options().exchange(std::make_shared<NoExchange>()));
    for (int step = 1; step <= 3; ++step) {
      a.mutable_grad().reset();
      counted->take();
      backward(reducer, step * (group->getRank() + 1.0) * a.sum());
      TORCH_CHECK(all_equal(a.grad(), step * (group->getRank() + 1.0)));
      TORCH_CHECK(counted->take().all_reduce == detail::kMarkNumel * 4);
    }
  });
}

}  // namespace mean_test
}  // namespace ddp
