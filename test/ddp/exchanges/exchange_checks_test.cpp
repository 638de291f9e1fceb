// Exchanges that check gradients before ranks combine them.
#include <limits>

#include <ATen/ops/embedding.h>
#include <torch/types.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/check_finite.h"
#include "ddp/reducer.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/fake_exchange.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace exchange_checks_test {

using Catch::Contains;
using test::backward;
using test::FakeBackend;
using test::FakeExchange;
using test::Group;
using test::leaf;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <typename Check>
void check_hands_on(
    const std::function<Check(std::shared_ptr<Exchange>)>& over) {
  struct Inner : FakeExchange {
    double scale(int ranks) const override { return 3.0 * ranks; }
    int64_t multiple_of(int ranks) const override { return 4 * ranks; }
    std::string refuses_sparse() const override { return "no rows"; }
  };
  const auto check = over(std::make_shared<Inner>());
  CHECK(check.scale(2) == 6);
  CHECK(check.multiple_of(2) == 8);
  CHECK(check.refuses_sparse() == "no rows");
}

TEST_CASE("a check hands on what its exchange says", "[exchange][checks]") {
  const Group group = c10::make_intrusive<FakeBackend>(2);
  check_hands_on<CheckFinite>(
      [&](auto inner) { return CheckFinite(inner, group); });
  CHECK_THROWS_WITH(CheckFinite(nullptr, group), Contains("but got none"));
}

// NaN and inf ---------------------------------------------------------------

TEST_CASE("gradients that are not finite name rank and parameter",
          "[exchange][checks]") {
  const int size = GENERATE(2, 3);
  const int bad_step = GENERATE(0, 1, 2);
  const auto dtype = GENERATE(torch::kFloat, torch::kHalf, torch::kDouble);
  const auto errors = try_ranks(size, [&](const Group& group) {
    auto first = leaf({3, 2}, dtype);
    auto second = leaf({5}, dtype);
    auto empty = leaf({0}, dtype);
    auto third = leaf({1}, dtype);
    Reducer reducer({{"first", first},
                     {"second", second},
                     {"empty", empty},
                     {"third", third}},
                    group,
                    Options().bucket_cap_mb(1e-6).exchange(
                        std::make_shared<CheckFinite>(group)));
    for (int step = 0; step < 3; ++step) {
      const bool is_bad = step == bad_step && group->getRank() == 1;
      for (auto* each : {&first, &second, &empty, &third}) {
        each->mutable_grad().reset();
      }
      backward(reducer,
               first.sum() + (second * (is_bad ? kInf : 2.0)).sum() +
                   empty.sum() + third.sum() * (is_bad ? kNan : 3.0));
      TORCH_CHECK(step < bad_step, "the bad step has passed");
      TORCH_CHECK(second.grad().eq(2).all().item<bool>(), second.grad());
    }
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("Expected finite gradients, but got on rank 1: ") &&
                   Contains("second (inf)") && Contains("third (NaN)") &&
                   !Contains("first"));
  }
}

TEST_CASE("sums that overflow are no rank's fault", "[exchange][checks]") {
  run_ranks(2, [](const Group& group) {
    auto weight = leaf({2}, torch::kHalf);
    const auto sum = std::make_shared<AllReduce>(group);
    Reducer reducer(
        {{"w", weight}},
        group,
        Options().exchange(std::make_shared<CheckFinite>(sum, group)));
    backward(reducer, (weight * 6e4).sum());
    TORCH_CHECK(weight.grad().isfinite().all().item<bool>());
  });
}

TEST_CASE("rows that are not finite are found, too", "[exchange][checks]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    auto table = torch::zeros({5, 2}).requires_grad_();
    Reducer reducer({{"table", table, true}},
                    group,
                    Options().exchange(std::make_shared<CheckFinite>(group)));
    for (int step = 0; step < 2; ++step) {
      table.mutable_grad().reset();
      const auto rows = torch::embedding(
          table, torch::tensor({int64_t{1}}), -1, false, /*sparse=*/true);
      const bool is_bad = step == 1 && group->getRank() == 0;
      backward(reducer, rows.sum() * (is_bad ? kNan : 1.0));
    }
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("on rank 0: table (NaN);"));
  }
}

}  // namespace exchange_checks_test
}  // namespace ddp
