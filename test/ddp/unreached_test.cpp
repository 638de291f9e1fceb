// find_unused_parameters: the reducer does not wait for parameters that the
// graph of a pass does not reach, so buckets are exchanged while the pass runs.
#include <torch/types.h>

#include "ddp/reducer.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/fake_exchange.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"
#include "test/support/nested_pass.h"

namespace ddp {
namespace unreached_test {

using Catch::Contains;
using test::all_equal;
using test::FakeBackend;
using test::Group;
using test::leaf;
using test::nested;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using Calls = std::vector<std::string>;
using Options = DistributedDataParallelOptions;

const Options kUnused =
    Options().find_unused_parameters(true).first_bucket_cap_mb(1e-6);

/// A bucket for each parameter, the last parameter first.
Options tiny() {
  return Options(kUnused).bucket_cap_mb(1e-6);
}

TEST_CASE("buckets start without what a pass does not reach", "[unreached]") {
  const bool is_shared = GENERATE(false, true);  // with `early`'s bucket
  const auto exchange = std::make_shared<test::FakeExchange>();
  auto unused = leaf({2}), early = leaf({3}), late = leaf({4});
  auto options = tiny().exchange(exchange);
  if (is_shared) {
    options.first_bucket_cap_mb(16.0 / (1 << 20));
  }
  Reducer reducer({{"late", late}, {"early", early}, {"unused", unused}},
                  c10::make_intrusive<FakeBackend>(2),
                  options);
  REQUIRE(reducer.plan().size() == (is_shared ? 2 : 3));
  Calls seen;
  late.register_hook([&](const Tensor&) { seen = exchange->take_calls(); });
  const auto pass = [&](bool uses_all) {
    exchange->take_calls();
    // In this order, which C++ does not promise for operands.
    const auto late_sum = late.sum(), early_sum = early.sum();
    auto loss = late_sum * early_sum;
    if (uses_all) {
      loss = loss + (late * 1).narrow(0, 0, 2).mul(unused * 1).sum();
    }
    test::backward(reducer, loss);
    return seen;
  };
  const Calls ahead =
      is_shared ? Calls{"start 0"} : Calls{"start 0", "start 1"};
  CHECK(pass(false).empty());  // the first pass records
  CHECK(pass(false) == ahead);
  CHECK(pass(true) == ahead);
  CHECK(pass(false) == ahead);
}

// Such parameters are frozen, used only by a local pass of this rank, or used
// only on other ranks.
TEST_CASE("what a pass does not reach has its share all the same",
          "[unreached]") {
  const bool as_view = GENERATE(false, true);
  run_ranks(3, [&](const Group& group) {
    const int rank = group->getRank();
    auto all = leaf({3}), mine = leaf({2}), local = leaf({4}), none = leaf({1});
    Reducer reducer(
        {{"all", all}, {"mine", mine}, {"local", local}, {"none", none}},
        group,
        tiny().gradient_as_bucket_view(as_view));
    for (int pass = 1; pass <= 5; ++pass) {
      none.requires_grad_(pass != 3);
      for (auto* each : {&all, &mine, &local, &none}) {
        each->mutable_grad().reset();
      }
      if (rank == 2) {
        (3 * pass * local.sum()).backward();
      }
      auto loss = pass * rank * all.sum();
      if (rank == pass % 3) {
        loss = loss + 6 * mine.sum();
      }
      test::backward(reducer, loss);
      TORCH_CHECK(all_equal(all.grad(), pass), all.grad());
      TORCH_CHECK(all_equal(mine.grad(), 2), mine.grad());
      TORCH_CHECK(all_equal(local.grad(), pass), local.grad());
      TORCH_CHECK(!none.grad().defined());
    }
  });
}

TEST_CASE("a gradient of a local pass has its share in the next pass only",
          "[unreached]") {
  const bool as_view = GENERATE(false, true);
  run_ranks(2, [&](const Group& group) {
    const int rank = group->getRank();
    auto all = leaf({3}), local = leaf({4});
    Reducer reducer({{"all", all}, {"local", local}},
                    group,
                    tiny().gradient_as_bucket_view(as_view));
    (2 * rank * local.sum()).backward();
    test::backward(reducer, all.sum());
    TORCH_CHECK(all_equal(local.grad(), 1), local.grad());
    // No rank reaches it, so it keeps what the program puts there.
    local.mutable_grad() = torch::full({4}, 5.0 + rank);
    test::backward(reducer, all.sum());
    TORCH_CHECK(all_equal(local.grad(), 5 + rank), local.grad());
  });
}

TEST_CASE("gradients of passes inside the pass are waited for", "[unreached]") {
  run_ranks(3, [](const Group& group) {
    auto x = leaf({3}), w = torch::full({3}, 2.0).requires_grad_();
    auto last = leaf({3});
    Reducer reducer({{"x", x}, {"last", last}, {"w", w}}, group, tiny());
    for (int pass = 1; pass <= 4; ++pass) {
      for (auto* each : {&x, &w, &last}) {
        each->mutable_grad().reset();
      }
      const double slope = pass * group->getRank();
      // The gradient of `last` comes first.
      test::backward(reducer, (slope * (nested(x * 1, w) + last)).sum());
      TORCH_CHECK(all_equal(w.grad(), pass), w.grad());
      TORCH_CHECK(all_equal(x.grad(), 2 * pass), x.grad());
      TORCH_CHECK(all_equal(last.grad(), pass), last.grad());
    }
  });
}

TEST_CASE("one that no pass before has had is an error with its name",
          "[unreached][errors]") {
  const auto errors = try_ranks(3, [](const Group& group) {
    auto x = leaf({3}), w = leaf({3}), last = leaf({3});
    Reducer reducer({{"x", x}, {"last", last}, {"w", w}}, group, tiny());
    for (int pass = 0; pass < 4; ++pass) {
      const bool is_odd = pass == 2 && group->getRank() == 1;
      const auto y = is_odd ? nested(x * 1, w) : x * 1;
      test::backward(reducer, (y + last).sum());  // `last`'s comes first
    }
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("on rank 1: w;"));
    CHECK_THAT(error, Contains("find_unused_on_demand(true)"));
  }
}

}  // namespace unreached_test
}  // namespace ddp
