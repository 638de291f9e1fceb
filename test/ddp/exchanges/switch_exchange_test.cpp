#include "ddp/exchanges/switch_exchange.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/coded_exchange.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/exchanges/weighted_mean.h"
#include "ddp/job/backends.h"
#include "ddp/join.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/fake_exchange.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"
#include "test/support/rank_threads.h"

namespace ddp {
namespace switch_exchange_test {

using Catch::Contains;
using test::all_equal;
using test::backward;
using test::FakeBackend;
using test::FakeExchange;
using test::Group;
using test::leaf;
using test::run_ranks;
using test::try_ranks;
using Options = DistributedDataParallelOptions;

TEST_CASE("exchanges take turns", "[exchange][switch]") {
  struct Scaled : FakeExchange {
    explicit Scaled(double value) : value_(value) {}
    double scale(int /*ranks*/) const override { return value_; }
    int64_t multiple_of(int /*ranks*/) const override {
      return static_cast<int64_t>(value_) * 2;
    }
    std::string refuses_sparse() const override {
      return value_ == 3 ? "no rows" : "";
    }
    double value_;
  };
  const auto first = std::make_shared<Scaled>(2);
  const auto later = std::make_shared<Scaled>(3);
  const auto both = std::make_shared<SwitchExchange>(first, 2, later);
  CHECK(both->multiple_of(2) == 12);
  CHECK(both->refuses_sparse() == "no rows");
  auto a = leaf({3});
  auto b = leaf({4});
  Reducer reducer(
      {{"a", a}, {"b", b}},
      c10::make_intrusive<FakeBackend>(2),
      Options().exchange(both).first_bucket_cap_mb(1e-6).bucket_cap_mb(1e-6));
  for (int step = 0; step < 4; ++step) {
    a.mutable_grad().reset();
    b.mutable_grad().reset();
    backward(reducer, a.sum() + b.sum());
    CHECK(all_equal(a.grad(), step < 2 ? 2 : 3));
    CHECK(first->take_calls().size() == (step < 2 ? 4 : 0));
    CHECK(later->take_calls().size() == (step < 2 ? 0 : 4));
  }
  const auto make = [] { return std::make_shared<Scaled>(1); };
  CHECK_THROWS_WITH(SwitchExchange(make(), -1, make()), Contains("got -1"));
  CHECK_THROWS_WITH(SwitchExchange(nullptr, 1, make()), Contains("got one"));
}

/// Returns a group of the ranks of this rank's half, which connect through a
/// common store. All ranks are connected when it returns.
Group half_of(const Group& group,
              const c10::intrusive_ptr<c10d::Store>& store) {
  detail::BackendSpec spec;
  spec.size = group->getSize() / 2;
  spec.rank = group->getRank() % spec.size;
  const auto name = group->getRank() < spec.size ? "lower" : "upper";
  spec.store = c10::make_intrusive<c10d::PrefixStore>(name, store);
  spec.timeout = test::kRankPatience / 2;
  auto half = detail::make_gloo_backend(spec);
  group->barrier()->wait();
  return half;
}

/// Returns an exchange that averages equal numbers exactly.
std::shared_ptr<Exchange> mean_over(const Group& group, int kind) {
  switch (kind) {
    case 0:
      return std::make_shared<AllReduce>(group);
    case 1:
      return std::make_shared<WeightedMean>(group);
    case 2:
      return std::make_shared<CodedExchange>(group,
                                             std::make_shared<QuantizedCode>());
    default:
      return std::make_shared<PowerSGD>(
          group, PowerSGDOptions().min_compression_rate(1).start_after(0));
  }
}

TEST_CASE("gradients are averaged by all ranks, then by some",
          "[exchange][switch]") {
  const int kind = GENERATE(0, 1, 2, 3);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(4, [&](const Group& group) {
    const auto half = half_of(group, store);
    auto weight = leaf({8, 6});
    Reducer reducer(
        {{"weight", weight}},
        group,
        Options().exchange(std::make_shared<SwitchExchange>(
            std::make_shared<AllReduce>(group), 2, mean_over(half, kind))));
    for (int step = 1; step <= 4; ++step) {
      weight.mutable_grad().reset();
      backward(reducer, weight.sum() * (step * (group->getRank() + 1.0)));
      const double mean = step <= 2 ? 2.5 : group->getRank() < 2 ? 1.5 : 3.5;
      TORCH_CHECK(weight.grad().allclose(torch::full({8, 6}, step * mean)),
                  weight.grad());
    }
    group->barrier()->wait();  // before the halves end
  });
}

/// A linear function; its gradient is its input.
struct SlopeImpl : torch::nn::Module {
  SlopeImpl() {
    weight = register_parameter("weight", torch::ones({3}, torch::kDouble));
  }
  at::Tensor forward(double x) { return (weight * x).sum(); }
  at::Tensor weight;
};
TORCH_MODULE(Slope);

std::shared_ptr<Exchange> later_among_half(
    const Group& group, const std::shared_ptr<Exchange>& later) {
  return std::make_shared<SwitchExchange>(
      std::make_shared<AllReduce>(group), 0, later);
}

// In each half ranks run out of inputs at different times; in the upper half
// both ranks do.
TEST_CASE("a half whose ranks have no inputs left divides by all its ranks",
          "[exchange][switch][join]") {
  const std::vector<int> counts{1, 3, 2, 1};
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(4, [&](const Group& group) {
    const auto half = half_of(group, store);
    const int rank = group->getRank();
    Slope net;
    DistributedDataParallel model(
        net,
        Options().process_group(group).exchange(
            later_among_half(group, std::make_shared<AllReduce>(half))));
    const int first = rank < 2 ? 0 : 2;
    int step = 0;
    const auto check = [&] {
      double sum = 0;
      for (int other = first; other < first + 2; ++other) {
        sum += step < counts[other] ? (step + 1.0) * (other + 1) : 0;
      }
      TORCH_CHECK(all_equal(net->weight.grad(), sum / 2),
                  "step ",
                  step,
                  ": ",
                  net->weight.grad());
      ++step;
    };
    Join join({*model});
    while (step < counts[rank]) {
      model->zero_grad();
      model->forward((step + 1.0) * (rank + 1)).backward();
      check();
    }
    join.finish(check);
    TORCH_CHECK(step == 3, step);
    group->barrier()->wait();  // before the halves end
  });
}

TEST_CASE(
    "a half cannot divide by those of it that have inputs, but weigh them",
    "[exchange][switch][join][errors]") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const bool weighs = GENERATE(false, true);
  const auto errors = try_ranks(4, [&](const Group& group) {
    const auto half = half_of(group, store);
    const auto weighted = std::make_shared<WeightedMean>(half);
    const int rank = group->getRank();
    Slope net;
    DistributedDataParallel model(
        net,
        Options().process_group(group).exchange(
            later_among_half(group,
                             weighs ? std::shared_ptr<Exchange>(weighted)
                                    : std::make_shared<AllReduce>(half))));
    Join join({*model}, JoinOptions().divide_by_initial_world_size(false));
    if (rank != 0) {
      model->forward(rank + 1.0).backward();
      TORCH_CHECK(all_equal(net->weight.grad(), rank == 1 ? 2 : 3.5),
                  net->weight.grad());
    } else {
      weighted->set_weight(0);
    }
    join.finish();
    group->barrier()->wait();  // before the halves end
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               weighs ? Contains("")
                      : Contains("exchanges gradients among 2 of 4 ranks"));
    CHECK(error.empty() == weighs);
  }
}

TEST_CASE(
    "a missing gradient ends the wait of ranks that others exchange "
    "without",
    "[exchange][switch][errors]") {
  const bool is_switch = GENERATE(false, true);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto errors = try_ranks(4, [&](const Group& group) {
    const auto half = half_of(group, store);
    auto a = leaf({2});
    auto b = leaf({2});
    Reducer reducer(
        {{"a", a}, {"b", b}},
        group,
        Options().exchange(
            is_switch
                ? later_among_half(group, std::make_shared<AllReduce>(half))
                : std::make_shared<AllReduce>(half)));
    const bool skips = group->getRank() == 3;
    backward(reducer, skips ? a.sum() : a.sum() + b.sum());
  });
  CHECK_THAT(errors[3], Contains("got none on rank 3: b;"));
  for (const int rank : {0, 1, 2}) {
    CHECK_THAT(errors[rank], Contains("another rank has left"));
  }
}

TEST_CASE("a compression takes over", "[exchange][switch]") {
  run_ranks(4, [](const Group& group) {
    const auto exchange = std::make_shared<SwitchExchange>(
        std::make_shared<AllReduce>(group),
        2,
        std::make_shared<PowerSGD>(group,
                                   PowerSGDOptions().min_compression_rate(1)));
    auto weight = leaf({8, 6});
    Reducer reducer({{"weight", weight}}, group, Options().exchange(exchange));
    for (int step = 1; step <= 4; ++step) {
      weight.mutable_grad().reset();
      backward(reducer, weight.sum() * (step * (group->getRank() + 1.0)));
      TORCH_CHECK(weight.grad().allclose(torch::full({8, 6}, step * 2.5)));
    }
  });
}

}  // namespace switch_exchange_test
}  // namespace ddp
