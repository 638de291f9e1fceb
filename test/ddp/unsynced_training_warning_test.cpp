#include "ddp/reduce/detail/unsynced_training_warning.h"

#include <functional>

#include <torch/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/warnings.h"

namespace ddp {
namespace unsynced_training_warning_test {

using Catch::Contains;
using detail::UnsyncedTrainingWarning;

constexpr int kSteps = UnsyncedTrainingWarning::kSteps;

TEST_CASE("steps between local passes are counted by one parameter",
          "[local]") {
  UnsyncedTrainingWarning watch;
  size_t mark = 7;
  const auto pass = [&](size_t changes) {
    mark += changes;
    REQUIRE_FALSE((watch.follows(3) && watch.follows(1)));
    return watch.follows(3) && watch.add(mark);
  };
  CHECK_FALSE(pass(0));
  SECTION("each step once, whatever it changes, and said once") {
    for (int step = 1; step < kSteps; ++step) {
      CHECK_FALSE(pass(step));
      CHECK_FALSE(pass(0));
    }
    CHECK(pass(1));
    for (int step = 0; step < 2 * kSteps; ++step) {
      CHECK_FALSE(pass(1));
    }
  }
  SECTION("never when it has been stopped") {
    watch.stop();
    for (int step = 0; step < 2 * kSteps; ++step) {
      CHECK_FALSE(pass(1));
    }
  }
}

TEST_CASE("a parameter's mark changes with it", "[local]") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kDouble);
  const int64_t rows = GENERATE(1, 3, 100);
  const auto parameter = torch::ones({rows, 5}, dtype).t();
  const auto mark = detail::mark_of(parameter);
  CHECK(detail::mark_of(parameter) == mark);
  parameter.data().mul_(0.5);  // as LibTorch's SGD: same version
  const auto halved = detail::mark_of(parameter);
  CHECK(halved != mark);
  parameter.mul_(1);
  CHECK(detail::mark_of(parameter) != halved);
  CHECK_NOTHROW(detail::mark_of(torch::ones({0})));
  CHECK_NOTHROW(detail::mark_of(torch::ones({3}).expand({2, 3})));
}

/// A wrapped layer on `rank` of two ranks, and the warnings of its training.
struct Training {
  explicit Training(int rank = 0)
      : model(net,
              DistributedDataParallelOptions().process_group(
                  c10::make_intrusive<test::FakeBackend>(2, rank))) {}

  /// Repeats `pass` and an optimizer step often enough, and returns the
  /// warnings.
  std::vector<std::string> warned_of(const std::function<void()>& pass) {
    const test::Warnings warnings;
    for (int step = 0; step < 2 * kSteps; ++step) {
      optimizer.zero_grad();
      pass();
      optimizer.step();
    }
    return warnings.texts();
  }

  torch::Tensor x = torch::ones({1, 2});
  torch::nn::Linear net{2, 1};
  DistributedDataParallel<torch::nn::LinearImpl> model;
  torch::optim::SGD optimizer{net->parameters(), 0.125};
};

TEST_CASE("a training without the wrapper's forward is told once", "[local]") {
  Training t;
  const auto warnings = t.warned_of([&] { t.net(t.x).sum().backward(); });
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0],
             Contains("have changed 25 times between passes") &&
                 Contains("Call the wrapper's forward") &&
                 Contains("while a NoSyncGuard lives"));

  Training other(/*rank=*/1);
  CHECK(other.warned_of([&] { other.net(other.x).sum().backward(); }).empty());
}

TEST_CASE("what is local for a reason is not told", "[local]") {
  Training t;
  const auto no_pass_tells = [&](const std::function<void()>& pass) {
    CHECK(t.warned_of(pass).empty());
  };
  SECTION("the wrapper's passes") {
    no_pass_tells([&] { t.model(t.x).sum().backward(); });
  }
  SECTION("local passes beside reduced ones") {
    no_pass_tells([&] {
      t.net(t.x).sum().backward();
      t.optimizer.step();
      t.model(t.x).sum().backward();
    });
  }
  SECTION("under a guard") {
    const NoSyncGuard no_sync(*t.model);
    no_pass_tells([&] { t.model(t.x).sum().backward(); });
    no_pass_tells([&] { t.net(t.x).sum().backward(); });
  }
  SECTION("a critic that another optimizer's passes go through") {
    auto made = torch::zeros({1, 2}).requires_grad_();
    const test::Warnings warnings;
    for (int step = 0; step < 2 * kSteps; ++step) {
      t.net(made).sum().backward();
      const torch::NoGradGuard no_grad;
      made -= 0.125 * made.grad();
    }
    CHECK(warnings.texts().empty());
  }
  SECTION("gradients that are not accumulated") {
    no_pass_tells([&] {
      torch::autograd::grad({t.net(t.x).sum()}, t.net->parameters());
    });
  }
  SECTION("an evaluation between steps by hand") {
    no_pass_tells([&] {
      const torch::NoGradGuard no_grad;
      t.net(t.x);
      t.net->weight.mul_(0.5);
    });
  }
}

}  // namespace unsynced_training_warning_test
}  // namespace ddp
