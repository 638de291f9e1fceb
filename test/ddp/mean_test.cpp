#include <cmath>

#include <ATen/ops/embedding.h>
#include <torch/types.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/no_exchange.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/exchanges/shared_memory_all_reduce.h"
#include "ddp/exchanges/weighted_mean.h"
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
  const auto kind = GENERATE(0, 1, 2, 3, 4);
  run_ranks(4, [&](const Group& group) {
    std::vector<std::shared_ptr<Exchange>> all{
        std::make_shared<AllReduce>(group),
        std::make_shared<AllReduce>(group, AllReduceOptions().mean(false)),
        std::make_shared<PowerSGD>(group),
        std::make_shared<WeightedMean>(group),
        std::make_shared<PowerSGD>(group, PowerSGDOptions().start_after(0))};
    auto weight = leaf({8, 10});
    Reducer reducer({{"weight", weight}}, group, Options().exchange(all[kind]));
    reducer.set_functions({.ranks = [] { return 2; }});
    // Ranks without inputs contribute zeros, and their weight is zero.
    const int rank = group->getRank();
    if (kind == 3) {
      dynamic_cast<WeightedMean&>(*all[kind]).set_weight(rank < 2 ? 1 : 0);
    }
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

TEST_CASE("what gradients cannot be divided by is refused",
          "[exchange][mean][errors]") {
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

TEST_CASE("a mean of ranks with a weight each", "[exchange][mean]") {
  const int size = GENERATE(1, 2, 3, 4);
  const bool narrow = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    const auto mean =
        narrow
            ? std::make_shared<WeightedMean>(
                  std::make_shared<CastExchange>(group, torch::kDouble), group)
            : std::make_shared<WeightedMean>(group);
    auto a = leaf({7});
    auto b = leaf({2, 5});
    Reducer reducer(
        {{"a", a}, {"b", b}},
        group,
        Options().exchange(mean).first_bucket_cap_mb(1e-6).bucket_cap_mb(1e-6));
    const int rank = group->getRank();
    for (int step = 1; step <= 4; ++step) {
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      // Rank 0 has no tokens in step 2; no rank has any in step 3.
      const auto tokens = [step](int of) {
        return step == 3 || (step == 2 && of == 0) ? 0.0 : of * 10.0 + step;
      };
      double all = 0;
      double weighted = 0;
      for (int i = 0; i < size; ++i) {
        all += tokens(i);
        weighted += tokens(i) * (i + 1.0);
      }
      mean->set_weight(tokens(rank));
      backward(reducer, (rank + 1.0) * (a.sum() + step * b.sum()));
      const double result = all == 0 ? 0 : weighted / all;
      TORCH_CHECK(a.grad().allclose(torch::full({7}, result)), a.grad());
      TORCH_CHECK(b.grad().allclose(torch::full({2, 5}, step * result)));
    }
  });
}

TEST_CASE("rows of sparse gradients are weighted, too",
          "[exchange][mean][sparse]") {
  run_ranks(2, [](const Group& group) {
    const auto mean = std::make_shared<WeightedMean>(group);
    auto table = torch::zeros({5, 2}).requires_grad_();
    Reducer reducer({{"table", table, true}}, group, Options().exchange(mean));
    mean->set_weight(group->getRank() == 0 ? 1 : 3);
    const auto row = torch::tensor({int64_t{group->getRank()}});
    backward(reducer, torch::embedding(table, row, -1, false, true).sum());
    const auto dense = table.grad().to_dense();
    TORCH_CHECK(all_equal(dense[0], 0.25) && all_equal(dense[1], 0.75), dense);
  });
}

TEST_CASE("a weight that is none is refused", "[exchange][mean][errors]") {
  const auto group = c10::make_intrusive<FakeBackend>(2);
  WeightedMean mean(group);
  for (const double weight : {-1.0, HUGE_VAL, std::nan("")}) {
    CHECK_THROWS_WITH(mean.set_weight(weight),
                      Contains("the weight of rank 0"));
  }
  CHECK_THROWS_WITH(WeightedMean(nullptr, group),
                    Contains("Expected an exchange for the weighted"));
  const WeightedMean of_two(std::make_shared<AllReduce>(group),
                            c10::make_intrusive<FakeBackend>(4));
  CHECK_THROWS_WITH(of_two.scale(4), Contains("but got one over 2"));
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
