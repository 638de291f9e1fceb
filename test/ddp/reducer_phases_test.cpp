// Events in each phase of a reducer: idle, armed, recording (the first pass)
// and reducing.
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
    reducer.arm();
    loss().backward();
    REQUIRE(exchange->take_calls() == kPass);
  }

  /// Runs a pass that calls `action` when `b`'s gradient is computed. Returns
  /// the exchange's calls.
  Calls pass_with(std::function<void()> action) {
    const auto middle = b * 1.0;
    middle.register_hook([&](const torch::Tensor&) { action(); });
    reducer.arm();
    const auto output = a.sum() * middle.sum();
    reducer.watch(output);
    output.backward();
    return exchange->take_calls();
  }
};

TEST_CASE("arm in each phase", "[reducer][phases]") {
  Fixture f;
  const bool recorded = GENERATE(false, true);
  if (recorded) {
    f.record();
  }
  SECTION("idle, then armed") {
    f.reducer.arm();
    f.reducer.arm();
    f.loss().backward();
    CHECK(f.exchange->take_calls() == kPass);
  }
  SECTION("taken back") {
    f.reducer.arm();
    f.reducer.disarm();
    f.loss().backward();
    CHECK(f.exchange->take_calls().empty());
  }
  SECTION("in a pass: a forward inside it, as checkpointing makes") {
    CHECK(f.pass_with([&] { f.reducer.arm(); }) == kPass);
    f.loss().backward();  // the pass has ended and disarmed the reducer
    CHECK(f.exchange->take_calls().empty());
  }
  SECTION("in a pass that an exception has left") {
    CHECK_THROWS(f.pass_with([] { throw std::runtime_error("no luck"); }));
    const auto watched = f.loss();
    f.reducer.watch(watched);
    for (const auto& loss : {f.loss(), watched}) {
      CHECK_THROWS_WITH(loss.backward(),
                        Contains("an exception left one on rank"));
    }
    CHECK_THROWS_WITH(f.reducer.arm(),
                      Contains("an exception left one on rank"));
  }
}

TEST_CASE("a gradient in each phase", "[reducer][phases]") {
  Fixture f;
  SECTION("idle: stays local") {
    f.loss().backward();
    CHECK(f.exchange->take_calls().empty());
    CHECK(f.a.grad().eq(3).all().item<bool>());
  }
  SECTION("armed: opens the pass") {
    f.reducer.arm();
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
    f.reducer.arm();
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
    f.reducer.arm();
    f.loss().backward();
    CHECK(seen == Calls{"start 0"});
    CHECK(f.exchange->take_calls() == Calls{"start 1", "finish 0", "finish 1"});
  }
}

TEST_CASE("a watched output's gradient in each phase", "[reducer][phases]") {
  Fixture f;
  const bool recorded = GENERATE(false, true);
  if (recorded) {
    f.record();
  }
  SECTION("idle: opens the pass") {
    const auto loss = f.loss();
    f.reducer.watch(loss);
    loss.backward();
    CHECK(f.exchange->take_calls() == kPass);
  }
  SECTION("armed: opens the pass") {
    CHECK(f.pass_with([] {}) == kPass);
  }
  SECTION("in a pass: belongs to it") {
    const auto inner = f.loss();
    f.reducer.watch(inner);
    const auto loss = inner * 2;
    f.reducer.watch(loss);
    loss.backward();
    CHECK(f.exchange->take_calls() == kPass);
  }
  SECTION("of a pass without parameters: none of ours, and idle after it") {
    const auto x = torch::ones({2}).requires_grad_();
    const auto loss = x.sum() * 1.0;
    f.reducer.watch(loss);
    loss.backward();
    f.loss().backward();
    CHECK(f.exchange->take_calls().empty());
  }
  SECTION("of one that will be differentiated: armed until the next arm") {
    const bool disarms = GENERATE(false, true);
    const auto x = torch::ones({2}).requires_grad_();
    const auto output = x.sum() * f.a.sum() * f.b.sum();
    f.reducer.watch(output);
    const auto slope = torch::autograd::grad({output}, {x}, {}, true, true)[0];
    if (disarms) {
      f.reducer.disarm();
    }
    slope.sum().backward();
    CHECK(f.exchange->take_calls() == (disarms ? Calls{} : kPass));
  }
}

TEST_CASE("the end of a pass leads back to idle", "[reducer][phases]") {
  Fixture f;
  for (int pass = 0; pass < 3; ++pass) {
    f.reducer.arm();
    f.loss().backward();
    CHECK(f.exchange->take_calls() == kPass);
    f.loss().backward();
    CHECK(f.exchange->take_calls().empty());
  }
  SECTION("also where a gradient was missing") {
    f.reducer.arm();
    const auto loss = f.a.sum() * 1.0;
    CHECK_THROWS_WITH(loss.backward(), Contains("on ranks 0-1: b;"));
    CHECK(f.exchange->take_calls() == kPass);
    f.loss().backward();
    CHECK(f.exchange->take_calls().empty());
  }
}

TEST_CASE("the reducer may go while its pass runs", "[reducer][phases]") {
  auto a = torch::ones({2}).requires_grad_();
  auto exchange = std::make_shared<test::FakeExchange>();
  auto reducer = std::make_unique<Reducer>(
      std::vector<NamedParameter>{{"a", a}},
      c10::make_intrusive<test::FakeBackend>(2),
      DistributedDataParallelOptions().exchange(exchange));
  const auto middle = a * 1.0;
  middle.register_hook([&](const torch::Tensor&) { reducer.reset(); });
  const auto loss = middle.sum() * 1.0;
  reducer->arm();
  reducer->watch(loss);
  loss.backward();
  CHECK(exchange->take_calls() == Calls{"start 0", "finish 0"});
}

}  // namespace reducer_phases_test
}  // namespace ddp
