// Exchanges that check gradients before ranks combine them.
#include <limits>
#include <random>

#include <ATen/ops/embedding.h>
#include <torch/types.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/check_finite.h"
#include "ddp/exchanges/desync_guard.h"
#include "ddp/reducer.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/fake_exchange.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"
#include "test/support/number_from.h"

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
  check_hands_on<DesyncGuard>(
      [&](auto inner) { return DesyncGuard(inner, group); });
  CHECK_THROWS_WITH(CheckFinite(nullptr, group), Contains("but got none"));
  CHECK_THROWS_WITH(DesyncGuard(nullptr, group), Contains("but got none"));
  CHECK_THROWS_WITH(DesyncGuard(group, DesyncGuardOptions().every(0)),
                    Contains("to be positive, but got 0"));
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

// Ranks that differ ---------------------------------------------------------

TEST_CASE("training in step passes the guard", "[exchange][checks][desync]") {
  run_ranks(3, [](const Group& group) {
    auto weight = leaf({7});
    auto wave = leaf({3}, torch::kComplexFloat);
    auto half = leaf({2, 2}, torch::kHalf);
    Reducer reducer({{"w", weight}, {"wave", wave}, {"half", half}},
                    group,
                    Options().exchange(std::make_shared<DesyncGuard>(
                        group, DesyncGuardOptions().every(2))));
    for (int step = 0; step < 5; ++step) {
      for (auto* each : {&weight, &wave, &half}) {
        each->mutable_grad().reset();
      }
      backward(reducer,
               weight.sum() * group->getRank() + torch::real(wave).sum() +
                   half.sum());
      TORCH_CHECK(weight.grad().eq(1).all().item<bool>(), weight.grad());
      const torch::NoGradGuard no_grad;
      weight -= weight.grad();
    }
  });
}

TEST_CASE("a value that differs is found at the next comparison",
          "[exchange][checks][desync]") {
  std::vector<int> passes(3);
  const auto errors = try_ranks(3, [&](const Group& group) {
    auto first = leaf({4});
    auto second = leaf({100});
    Reducer reducer(
        {{"first", first}, {"second", second}},
        group,
        Options().bucket_cap_mb(1e-5).exchange(std::make_shared<DesyncGuard>(
            group, DesyncGuardOptions().every(3))));
    for (int step = 0; step < 9; ++step) {
      if (step == 4 && group->getRank() == 2) {
        second.data()[57] += 1e-6;
      }
      backward(reducer, first.sum() + second.sum());
      ++passes[group->getRank()];
      const torch::NoGradGuard no_grad;
      first -= 0.5;
      second -= 0.5;
    }
  });
  CHECK(passes == std::vector<int>{6, 6, 6});
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("on ranks 0-1: parameter second of ") &&
                   Contains("; on rank 2: parameter second of ") &&
                   Contains("values with the digest"));
  }
}

enum class Flaw { none, shape, order, dtype, name, value, layout };

/// One rank's buckets of a model, determined by a seed.
class Program {
 public:
  Program(uint64_t seed, Flaw flaw) : random_(seed) {
    const auto count = below(4) + 2;
    for (uint64_t i = 0; i < count; ++i) {
      const auto sizes =
          std::vector<int64_t>{int64_t(below(3)) + 2, int64_t(below(4)) + 2};
      const auto dtype = below(2) == 0 ? torch::kFloat : torch::kDouble;
      const auto values = torch::arange(sizes[0] * sizes[1], dtype);
      parameters_.push_back(
          {"p" + std::to_string(i), values.view(sizes) + double(below(9))});
    }
    split_ = below(count - 1) + 1;
    passes = int(below(3)) + 1;
    const auto place = below(count);
    culprit = parameters_[place].name;
    spoil(flaw, place);
  }

  /// Runs the passes, each followed by a step that is the same on all ranks.
  void run(Exchange& guard) {
    for (int pass = 0; pass < passes; ++pass) {
      const c10::ArrayRef<NamedParameter> all(parameters_);
      const std::vector<GradientBucket> buckets{
          bucket_of(0, all.slice(0, split_)), bucket_of(1, all.slice(split_))};
      for (const auto& bucket : buckets) {
        guard.start(bucket);
      }
      for (const auto& bucket : buckets) {
        guard.finish(bucket);
      }
      for (auto& parameter : parameters_) {
        parameter.tensor.mul_(0.75).add_(1 + pass);
      }
    }
  }

  std::string culprit;
  int passes = 1;

 private:
  uint64_t below(uint64_t bound) { return random_() % bound; }

  void spoil(Flaw flaw, size_t place) {
    auto& [name, tensor, sparse] = parameters_[place];
    switch (flaw) {
      case Flaw::shape:
        tensor = torch::cat({tensor, tensor});
        break;
      case Flaw::order:
        std::swap(parameters_[place],
                  parameters_[(place + 1) % parameters_.size()]);
        break;
      case Flaw::dtype:
        tensor = tensor.to(torch::kHalf);
        break;
      case Flaw::name:
        name += "_other";
        break;
      case Flaw::value:
        tensor[0][1] += 1;
        break;
      case Flaw::layout:
        tensor = tensor.t().contiguous().t();
        break;
      default:
        break;
    }
  }

  static GradientBucket bucket_of(size_t index,
                                  c10::ArrayRef<NamedParameter> parameters) {
    int64_t numel = 0;
    for (const auto& parameter : parameters) {
      numel += parameter.tensor.numel();
    }
    const auto payload =
        torch::zeros({numel}, parameters.front().tensor.options());
    return {index, 2, payload, parameters};
  }

  std::mt19937_64 random_;
  std::vector<NamedParameter> parameters_;
  size_t split_ = 1;
};

/// The seed selects the flaw. Every seventh program has none.
constexpr uint64_t kFlaws = 7;

/// Runs programs on three ranks, of which at most one has a flaw.
/// @param every  distance from one seed to the next.
void run_programs(uint64_t first, uint64_t count, uint64_t every = 1) {
  run_ranks(3, [&](const Group& group) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t seed = first + i * every;
      const auto flaw = static_cast<Flaw>(seed % kFlaws);
      const auto wrong = static_cast<int>(seed / kFlaws % 3);
      const bool is_wrong = group->getRank() == wrong;
      Program program(seed, is_wrong ? flaw : Flaw::none);
      DesyncGuard guard(std::make_shared<FakeExchange>(),
                        group,
                        DesyncGuardOptions().every(1));
      std::string error;
      try {
        program.run(guard);
      } catch (const c10::Error& caught) {
        error = caught.what_without_backtrace();
      }
      const auto has = [&](const std::string& text) {
        return error.find(text) != std::string::npos;
      };
      const bool is_right =
          flaw == Flaw::none
              ? error.empty()
              : has(program.culprit) && has("rank " + std::to_string(wrong));
      TORCH_CHECK(is_right, "seed ", seed, ": ", error);
    }
  });
}

// DDP_PROGRAMS and DDP_PROGRAMS_SEED select more programs.
TEST_CASE("every rank names the one that is wrong, and its parameter",
          "[exchange][checks][desync]") {
  run_programs(test::number_from("DDP_PROGRAMS_SEED", 0),
               test::number_from("DDP_PROGRAMS", 160));
}

TEST_CASE("right programs raise no alarm", "[exchange][checks][desync]") {
  run_programs(kFlaws * test::number_from("DDP_PROGRAMS_SEED", 1000),
               test::number_from("DDP_PROGRAMS", 80),
               kFlaws);
}

}  // namespace exchange_checks_test
}  // namespace ddp
