// Waits that are ended by an event: who is not woken would wait for an hour.
#include "dp/detail/parameter_server/coordinator.h"

#include <torch/optim/sgd.h>

#include <future>

#include "test/dp/threads.h"
#include "test/support/catch.h"

namespace dp::detail {
namespace coordinator_test {

using Policy = std::unique_ptr<UpdatePolicy>;
using Act = std::function<void(Coordinator&)>;

// Who is not woken looks again after its patience.
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

Act take_last() {
  return [](Coordinator& coordinator) {
    TORCH_CHECK(coordinator.take_last(kPatience));
  };
}

void ask_and_take(Coordinator& coordinator, int worker) {
  coordinator.ask(worker);
  take(worker)(coordinator);
}

/// Starts `wait` in another thread, does `act`, which must end the wait.
/// Many times, since `act` may come first.
void check_woken(const std::function<Policy()>& make_policy,
                 const Act& before,
                 const Act& wait,
                 const Act& act) {
  for (int round = 0; round < 50; ++round) {
    const auto parameter = at::zeros({2});
    Coordinator coordinator(make_policy(), {parameter}, 2);
    Shard shard({parameter}, sgd, nullptr);
    coordinator.serve(shard);
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
      [](auto& coordinator) { coordinator.push(0, 0); },
      take(0),
      [](auto& coordinator) { coordinator.push(1, 0); });
}

TEST_CASE("asynchronous: an update, an end and a death wake", "[coordinator]") {
  const auto act = GENERATE(values<Act>(
      {[](auto& coordinator) { coordinator.push(0, 0); },
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
              take_last(),
              act);
}

TEST_CASE("the end of the job wakes all who wait", "[coordinator]") {
  const auto wait = GENERATE(values<Act>({take(0), take_last()}));
  const auto act = GENERATE(
      values<Act>({[](auto& coordinator) { coordinator.fail("no more"); },
                   [](auto& coordinator) { coordinator.lose(1, "no more"); }}));
  check_woken(
      synchronous,
      [](auto& coordinator) { coordinator.push(0, 0); },
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

}  // namespace coordinator_test
}  // namespace dp::detail
