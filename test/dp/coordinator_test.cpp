// Waits that an event has to end. A waiter that is not woken would block for an
// hour.
#include "dp/servers/detail/coordinator.h"

#include <torch/optim/sgd.h>

#include <future>
#include <thread>

#include "dp/servers/detail/message.h"
#include "test/dp/peak_meter.h"
#include "test/dp/threads.h"
#include "test/support/catch.h"

namespace dp::detail {
namespace coordinator_test {

using Policy = std::unique_ptr<UpdatePolicy>;
using Act = std::function<void(Coordinator&)>;

// A waiter that is not woken checks its condition again after this time.
constexpr std::chrono::hours kPatience{1};

Policy synchronous() {
  return synchronous_updates({"worker 0", "worker 1"});
}

Policy asynchronous(int64_t bound) {
  return asynchronous_updates({"worker 0", "worker 1"}, bound);
}

std::unique_ptr<torch::optim::Optimizer> sgd(
    const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, 0.1);
}

Act take(int worker) {
  return [worker](Coordinator& coordinator) {
    TORCH_CHECK(coordinator.take(worker, kPatience));
  };
}

Act acquire_final() {
  return [](Coordinator& coordinator) {
    TORCH_CHECK(coordinator.acquire_final(kPatience));
  };
}

void push(Coordinator& coordinator, int worker) {
  const auto memory = coordinator.memory_for(worker, kPatience);
  TORCH_CHECK(memory);
  memory->zero_();
  coordinator.push(worker, {1}, 0);
}

void ask_and_take(Coordinator& coordinator, int worker) {
  coordinator.ask(worker);
  take(worker)(coordinator);
}

/// Makes updates on a thread during its lifetime.
struct Updating {
  explicit Updating(Coordinator& coordinator)
      : coordinator_(coordinator), thread_([&] { coordinator_.run(); }) {}
  ~Updating() {
    coordinator_.close();
    thread_.join();
  }
  Updating(const Updating&) = delete;
  Updating& operator=(const Updating&) = delete;

 private:
  Coordinator& coordinator_;
  std::thread thread_;
};

/// Starts `wait` in another thread and runs `act`, which must end the wait.
/// Repeats this, because `act` may run first.
void check_woken(const std::function<Policy()>& make_policy,
                 const Act& before,
                 const Act& wait,
                 const Act& act) {
  for (int round = 0; round < 50; ++round) {
    const auto parameter = at::zeros({2});
    Coordinator coordinator(make_policy(), {parameter}, 2, 2);
    Shard shard({parameter}, sgd, nullptr);
    coordinator.serve(shard);
    const Updating updating(coordinator);
    before(coordinator);
    std::promise<void> begins;
    auto waiting = std::async(std::launch::async, [&] {
      begins.set_value();
      wait(coordinator);
    });
    auto begun = begins.get_future();
    test::get_in_time(begun, "the start of the thread that waits");
    act(coordinator);
    test::get_in_time(waiting, "the wait that the act ends");
  }
}

TEST_CASE("synchronous: the last push of a round wakes", "[coordinator]") {
  check_woken(
      synchronous,
      [](auto& coordinator) { push(coordinator, 0); },
      take(0),
      [](auto& coordinator) { push(coordinator, 1); });
}

TEST_CASE("asynchronous: an update, an end and a death wake", "[coordinator]") {
  const auto act = GENERATE(values<Act>(
      {[](auto& coordinator) { push(coordinator, 0); },
       [](auto& coordinator) { coordinator.leave(0); },
       [](auto& coordinator) { coordinator.lose(0, "worker 0 is gone"); }}));
  check_woken([] { return asynchronous(0); },
              [](auto& coordinator) {
                ask_and_take(coordinator, 0);
                coordinator.ask(1);
              },
              take(1),
              act);
}

TEST_CASE("asynchronous: who takes wakes the next in the queue",
          "[coordinator]") {
  check_woken([] { return asynchronous(4); },
              [](auto& coordinator) {
                coordinator.ask(0);
                coordinator.ask(1);
              },
              take(1),
              take(0));
}

TEST_CASE("the last worker that goes wakes those that have left",
          "[coordinator]") {
  const auto act = GENERATE(values<Act>(
      {[](auto& coordinator) { coordinator.leave(1); },
       [](auto& coordinator) { coordinator.lose(1, "worker 1 is gone"); }}));
  check_woken([] { return asynchronous(0); },
              [](auto& coordinator) { coordinator.leave(0); },
              acquire_final(),
              act);
}

TEST_CASE("the end of the job wakes all who wait", "[coordinator]") {
  const auto wait = GENERATE(values<Act>({take(0), acquire_final()}));
  const auto act = GENERATE(
      values<Act>({[](auto& coordinator) { coordinator.fail("no more"); },
                   [](auto& coordinator) { coordinator.lose(1, "no more"); }}));
  check_woken(
      synchronous,
      [](auto& coordinator) { push(coordinator, 0); },
      [&](auto& coordinator) {
        try {
          wait(coordinator);
        } catch (const JobEnded& ended) {
          TORCH_CHECK(ended.what() == std::string("no more"));
          return;
        }
        TORCH_CHECK(false, "no JobEnded");
      },
      act);
}

TEST_CASE("room for gradients wakes who waits for it", "[coordinator]") {
  // Worker 1 is ahead of its turn, and there is memory for one such gradient.
  const auto hold = [](int worker) {
    return [worker](Coordinator& coordinator) {
      TORCH_CHECK(coordinator.memory_for(worker, kPatience));
    };
  };
  const auto act = GENERATE(values<Act>(
      {[](auto& coordinator) {
         push(coordinator, 0);
         coordinator.push(1, {1}, 0);
       },
       [](auto& coordinator) { coordinator.lose(1, "worker 1 is gone"); }}));
  for (int round = 0; round < 50; ++round) {
    const auto parameter = at::zeros({2});
    Coordinator coordinator(
        synchronous_updates({"0", "1", "2"}), {parameter}, 3, 2);
    Shard shard({parameter}, sgd, nullptr);
    coordinator.serve(shard);
    const Updating updating(coordinator);
    hold(1)(coordinator);
    CHECK_FALSE(coordinator.memory_for(2, std::chrono::milliseconds(0)));
    auto waiting =
        std::async(std::launch::async, hold(2), std::ref(coordinator));
    act(coordinator);
    test::get_in_time(waiting, "the wait for room");
  }
}

/// Returns the peak memory of a coordinator in a short training, in gradients.
int64_t peak_of(Policy policy, int workers, bool in_order) {
  constexpr int64_t kSize = 1 << 16;
  const auto parameter = at::zeros({kSize});
  Shard shard({parameter}, sgd, nullptr);
  const test::PeakMeter meter;
  Coordinator coordinator(std::move(policy), {parameter}, workers, 2);
  coordinator.serve(shard);
  for (int step = 0; step < 3; ++step) {
    for (int worker = 0; worker < workers; ++worker) {
      ask_and_take(coordinator, worker);
    }
    if (!in_order) {  // the last worker first
      push(coordinator, workers - 1);
    }
    for (int worker = 0; worker < workers - (in_order ? 0 : 1); ++worker) {
      push(coordinator, worker);
      coordinator.make_updates();
    }
  }
  TORCH_CHECK(coordinator.failure().empty(), coordinator.failure());
  return meter.peak() / (4 * kSize);
}

TEST_CASE("a server's memory does not grow with the workers", "[coordinator]") {
  const int workers = GENERATE(2, 16);
  const std::vector<std::string> names(static_cast<size_t>(workers));
  // The sum and a gradient to add; a third gradient that is ahead of its turn.
  CHECK(peak_of(synchronous_updates(names), workers, true) == 2);
  CHECK(peak_of(synchronous_updates(names), workers, false) ==
        std::min(workers, 3));
  CHECK(peak_of(asynchronous_updates(names, 2 * workers), workers, true) == 1);
}

constexpr std::chrono::milliseconds kNow{0};

TEST_CASE("asynchronous: a piece is a copy of what the parameters are then",
          "[coordinator]") {
  constexpr int64_t kSize = kPieceBytes;  // four pieces of floats
  const auto parameter = at::zeros({kSize});
  Coordinator coordinator(
      asynchronous_updates({"0", "1"}, 8), {parameter}, 2, 2);
  Shard shard({parameter}, sgd, nullptr);
  coordinator.serve(shard);
  ask_and_take(coordinator, 0);
  const auto first = coordinator.piece(0, kNow);
  REQUIRE(first);
  CHECK(first->numel() == kPieceBytes);
  ask_and_take(coordinator, 1);
  const auto memory = coordinator.memory_for(1, kPatience);
  memory->view(at::kFloat).fill_(1);
  coordinator.push(1, {1}, 0);
  coordinator.make_updates();
  CHECK(first->view(at::kFloat).eq(0).all().item<bool>());
  const auto second = coordinator.piece(kPieceBytes, kNow);
  REQUIRE(second);
  CHECK(second->view(at::kFloat).eq(-0.1F).all().item<bool>());
}

TEST_CASE("who waits is told in a long update, too", "[coordinator]") {
  const auto is_after = GENERATE(false, true);
  const auto parameter = at::zeros({2});
  Coordinator coordinator(asynchronous(1), {parameter}, 2, 2);
  std::promise<void> begins, goes_on;
  const auto take_long = [&] {
    begins.set_value();
    auto end = goes_on.get_future();
    test::get_in_time(end, "the end of the update");
  };
  Shard shard({parameter}, sgd, [&](const auto&, auto&) {
    if (!is_after) {
      take_long();
    }
  });
  coordinator.serve(shard, 0, [&](int64_t) {
    if (is_after) {
      take_long();
    }
  });
  const Updating updating(coordinator);
  for (const int worker : {0, 1}) {
    ask_and_take(coordinator, worker);
  }
  push(coordinator, 0);
  auto begun = begins.get_future();
  test::get_in_time(begun, "the begin of the update");
  coordinator.ask(0);
  CHECK_FALSE(coordinator.take(0, kNow));
  CHECK_FALSE(coordinator.piece(0, kNow));
  CHECK_FALSE(coordinator.acquire_final(kNow));
  CHECK(coordinator.memory_for(1, kNow));
  goes_on.set_value();
  CHECK(coordinator.take(0, kPatience) == 1);
}

}  // namespace coordinator_test
}  // namespace dp::detail
