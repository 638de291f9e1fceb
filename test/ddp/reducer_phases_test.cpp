// Events in each state of a reducer: idle, recording (the first pass) and
// reducing.
#include <torch/autograd.h>
#include <torch/types.h>

#include "ddp/reducer.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/fake_exchange.h"

namespace ddp {
namespace reducer_phases_test {

using Catch::Contains;
using Calls = std::vector<std::string>;

const Calls kPass{"start 0", "start 1", "finish 0", "finish 1"};

/// Two parameters with a bucket each, and an exchange that records its calls.
struct Fixture {
  torch::Tensor a = torch::ones({2}).requires_grad_();
  torch::Tensor b = torch::ones({3}).requires_grad_();
  std::shared_ptr<test::FakeExchange> exchange =
      std::make_shared<test::FakeExchange>();
  Reducer reducer{{{"a", a}, {"b", b}},
                  c10::make_intrusive<test::FakeBackend>(2),
                  DistributedDataParallelOptions()
                      .exchange(exchange)
                      .first_bucket_cap_mb(1e-6)
                      .bucket_cap_mb(1e-6)};

  torch::Tensor loss() const { return a.sum() * b.sum(); }

  /// Runs the recording pass, so that the next pass is a reducing one.
  void record() {
    loss().backward();
    REQUIRE(exchange->take_calls() == kPass);
  }

  /// Runs a pass that calls `action` when `b`'s gradient is computed. Returns
  /// the exchange's calls.
  Calls pass_with(std::function<void()> action) {
    const auto middle = b * 1.0;
    middle.register_hook([&](const torch::Tensor&) { action(); });
    const auto output = a.sum() * middle.sum();
    output.backward();
    return exchange->take_calls();
  }
};

TEST_CASE("before_forward in each state", "[reducer][phases]") {
  Fixture f;
  const bool recorded = GENERATE(false, true);
  if (recorded) {
    f.record();
  }
  SECTION("idle") {
    f.reducer.before_forward();
    f.reducer.before_forward();
    f.loss().backward();
    CHECK(f.exchange->take_calls() == kPass);
  }
  SECTION("in a pass: a forward inside it, as checkpointing makes") {
    CHECK(f.pass_with([&] { f.reducer.before_forward(); }) == kPass);
  }
  SECTION("in a pass that an exception has left") {
    CHECK_THROWS(f.pass_with([] { throw std::runtime_error("no luck"); }));
    CHECK_THROWS_WITH(f.reducer.before_forward(),
                      Contains("an exception has left its backward pass"));
    f.exchange->take_calls();
    CHECK_THROWS_WITH(f.loss().backward(),
                      Contains("an exception has left its backward pass"));
    CHECK(f.exchange->take_calls().empty());
  }
}

TEST_CASE("a gradient in each state", "[reducer][phases]") {
  Fixture f;
  SECTION("under a guard: stays local") {
    const NoSyncGuard no_sync(f.reducer);
    f.loss().backward();
    CHECK(f.exchange->take_calls().empty());
    CHECK(f.a.grad().eq(3).all().item<bool>());
  }
  SECTION("the forward under a guard, the pass outside: opens the pass") {
    torch::Tensor loss;
    {
      const NoSyncGuard no_sync(f.reducer);
      f.reducer.before_forward();
      loss = f.loss();
    }
    loss.backward();
    CHECK(f.exchange->take_calls() == kPass);
  }
  SECTION("idle: opens the pass") {
    f.loss().backward();
    CHECK(f.exchange->take_calls() == kPass);
  }
  SECTION("recording: nothing starts before the end") {
    std::vector<Calls> seen;
    for (const auto& parameter : {f.a, f.b}) {
      parameter.register_hook([&](const torch::Tensor&) {
        seen.push_back(f.exchange->take_calls());
      });
    }
    f.loss().backward();
    CHECK(seen == std::vector<Calls>{{}, {}});
    CHECK(f.exchange->take_calls() == kPass);
  }
  SECTION("reducing: a full bucket starts") {
    f.record();
    Calls seen;
    // The parameter with the last gradient. The other parameter's bucket has
    // started by then.
    const auto& last = f.reducer.plan().back()[0] == 0 ? f.a : f.b;
    last.register_hook(
        [&](const torch::Tensor&) { seen = f.exchange->take_calls(); });
    f.loss().backward();
    CHECK(seen == Calls{"start 0"});
    CHECK(f.exchange->take_calls() == Calls{"start 1", "finish 0", "finish 1"});
  }
}

TEST_CASE("a pass that accumulates nothing is none", "[reducer][phases]") {
  Fixture f;
  const auto x = torch::ones({2}).requires_grad_();
  const auto output = x.sum() * f.a.sum() * f.b.sum();
  SECTION("gradients of the parameters") {
    torch::autograd::grad({output}, {f.a, f.b});
    CHECK(f.exchange->take_calls().empty());
  }
  SECTION("a pass to other tensors, then one through its gradient") {
    const auto slope = torch::autograd::grad({output}, {x}, {}, true, true)[0];
    CHECK(f.exchange->take_calls().empty());
    slope.sum().backward();
    CHECK(f.exchange->take_calls() == kPass);
  }
}

TEST_CASE("the end of a pass leads back to idle", "[reducer][phases]") {
  Fixture f;
  for (int pass = 0; pass < 3; ++pass) {
    f.loss().backward();
    CHECK(f.exchange->take_calls() == kPass);
  }
}

TEST_CASE("a missing gradient ends the training", "[reducer][phases]") {
  Fixture f;
  CHECK_THROWS_WITH((f.a.sum() * 1.0).backward(),
                    Contains("got none on rank 0: b;"));
  CHECK(f.exchange->take_calls() == Calls{"abandon"});
  CHECK_THROWS_WITH(f.loss().backward(), Contains("got none on rank 0: b;"));
  CHECK(f.exchange->take_calls().empty());
}

TEST_CASE("the reducer may go while its pass runs", "[reducer][phases]") {
  auto a = torch::ones({2}).requires_grad_();
  auto b = torch::ones({2}).requires_grad_();
  auto exchange = std::make_shared<test::FakeExchange>();
  auto reducer = std::make_unique<Reducer>(
      std::vector<NamedParameter>{{"a", a}, {"b", b}},
      c10::make_intrusive<test::FakeBackend>(2),
      DistributedDataParallelOptions().exchange(exchange));
  const auto middle = a * 1.0;
  middle.register_hook([&](const torch::Tensor&) { reducer.reset(); });
  auto loss = middle.sum();
  loss = loss * b.sum();  // its gradient comes first
  loss.backward();
  CHECK(exchange->take_calls() == Calls{"start 0", "finish 0"});
}

}  // namespace reducer_phases_test
}  // namespace ddp
