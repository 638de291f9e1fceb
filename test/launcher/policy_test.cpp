#include "launcher/policy.h"

#include <csignal>

#include "test/support/catch.h"

using namespace launcher;
using namespace std::chrono_literals;
using Phase = Policy::Phase;

namespace {

constexpr ExitStatus kSuccess{};
constexpr ExitStatus kFailure{.code = 3};
constexpr ExitStatus kCrash{.signal = SIGSEGV};

Policy policy_of(int workers, int max_restarts = 0) {
  return Policy({.worker_count = workers,
                 .max_restarts = max_restarts,
                 .grace_period = 7s,
                 .stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT}});
}

/// A policy of three workers in a phase.
Policy policy_in(Phase phase, int max_restarts = 0) {
  Policy policy = policy_of(3, max_restarts);
  if (phase != Phase::running) {
    policy.on(WorkerExited{0, kFailure});
  }
  if (phase == Phase::killing) {
    policy.on(TimeIsUp{});
  }
  return policy;
}

template <typename Expected>
Expected act(Policy& policy, const Event& event) {
  const Action action = policy.on(event);
  CAPTURE(action.index());
  REQUIRE(std::holds_alternative<Expected>(action));
  return std::get<Expected>(action);
}

}  // namespace

TEST_CASE("running: workers that are done are tidied up, the last ends it") {
  Policy policy = policy_in(Phase::running);
  CHECK(act<EndGroup>(policy, WorkerExited{1, kSuccess}).local_rank == 1);
  CHECK(policy.alive() == 2);
  CHECK(act<EndGroup>(policy, WorkerExited{0, kSuccess}).local_rank == 0);
  act<KillAll>(policy, WorkerExited{2, kSuccess});
  CHECK(policy.phase() == Phase::killing);
  act<Finish>(policy, AllAreGone{});
  CHECK(policy.cause() == Policy::Cause::none);
}

TEST_CASE("running: the first failure stops the others") {
  const auto status = GENERATE(kFailure, kCrash);
  Policy policy = policy_in(Phase::running);
  const auto stop = act<StopAll>(policy, WorkerExited{1, status});
  CHECK(stop.number == SIGTERM);
  CHECK(stop.time == 7s);
  CHECK(policy.phase() == Phase::stopping);
  CHECK(policy.cause() == Policy::Cause::failure);
}

TEST_CASE("running: a stop signal is passed on") {
  const int number = GENERATE(SIGTERM, SIGINT, SIGHUP, SIGQUIT);
  Policy policy = policy_in(Phase::running);
  const auto stop = act<StopAll>(policy, SignalReceived{number});
  CHECK(stop.number == number);
  CHECK(stop.time == 7s);
  CHECK(policy.phase() == Phase::stopping);
  CHECK(policy.stop_signal() == number);
  CHECK(policy.cause() == Policy::Cause::signal);
}

TEST_CASE("other signals are passed on in every phase and change nothing") {
  const auto phase = GENERATE(Phase::running, Phase::stopping, Phase::killing);
  Policy policy = policy_in(phase);
  CHECK(act<SignalAll>(policy, SignalReceived{SIGUSR1}).number == SIGUSR1);
  CHECK(policy.phase() == phase);
  CHECK(policy.stop_signal() == 0);
}

TEST_CASE("running: the timer means nothing") {
  Policy policy = policy_in(Phase::running);
  act<Wait>(policy, TimeIsUp{});
  CHECK(policy.phase() == Phase::running);
}

TEST_CASE("stopping: exits are awaited, however they end") {
  const auto status = GENERATE(kSuccess, kFailure, kCrash);
  Policy policy = policy_in(Phase::stopping);
  act<Wait>(policy, WorkerExited{1, status});
  act<Wait>(policy, WorkerExited{2, status});
  CHECK(policy.alive() == 0);
  CHECK(policy.phase() == Phase::stopping);
  act<Finish>(policy, AllAreGone{});
}

TEST_CASE("stopping: the grace period ends with SIGKILL") {
  Policy policy = policy_in(Phase::stopping);
  CHECK(act<KillAll>(policy, TimeIsUp{}).time == 7s);
  CHECK(policy.phase() == Phase::killing);
}

TEST_CASE("a process that is killed has some seconds, whatever the grace") {
  Policy policy({.worker_count = 1, .grace_period = 0s, .stop_signals = {}});
  CHECK(act<StopAll>(policy, WorkerExited{0, kFailure}).time == 0s);
  CHECK(act<KillAll>(policy, TimeIsUp{}).time >= 1s);
}

TEST_CASE("stopping: only a second signal from the keyboard is impatient") {
  Policy policy = policy_in(Phase::running);
  act<StopAll>(policy, SignalReceived{SIGHUP});
  // A terminal that closes and its shell both send one.
  CHECK(act<SignalAll>(policy, SignalReceived{SIGHUP}).number == SIGHUP);
  CHECK(act<SignalAll>(policy, SignalReceived{SIGTERM}).number == SIGTERM);
  CHECK(act<SignalAll>(policy, SignalReceived{SIGINT}).number == SIGINT);
  act<KillAll>(policy, SignalReceived{SIGINT});
  CHECK(policy.stop_signal() == SIGHUP);
}

TEST_CASE("stopping after a failure: a signal forbids the restart") {
  Policy policy = policy_in(Phase::stopping, /*max_restarts=*/5);
  act<SignalAll>(policy, SignalReceived{SIGTERM});
  CHECK(policy.cause() == Policy::Cause::failure);
  act<Finish>(policy, AllAreGone{});
}

TEST_CASE("killing: everything is awaited, but not for ever") {
  Policy policy = policy_in(Phase::killing);
  act<Wait>(policy, WorkerExited{1, kCrash});
  act<Wait>(policy, SignalReceived{SIGINT});
  act<Wait>(policy, SignalReceived{SIGTERM});
  act<Finish>(policy, TimeIsUp{});
}

TEST_CASE("a failure is restarted as often as allowed") {
  Policy policy = policy_of(2, /*max_restarts=*/2);
  for (int restart = 1; restart <= 2; ++restart) {
    act<StopAll>(policy, WorkerExited{0, kFailure});
    act<Wait>(policy, WorkerExited{1, kCrash});
    act<Restart>(policy, AllAreGone{});
    CHECK(policy.restarts() == restart);
    CHECK(policy.alive() == 2);
    CHECK(policy.phase() == Phase::running);
  }
  act<StopAll>(policy, WorkerExited{1, kFailure});
  act<Wait>(policy, WorkerExited{0, kCrash});
  act<Finish>(policy, AllAreGone{});
}

TEST_CASE("neither success nor a signal is restarted") {
  Policy done = policy_of(1, 9);
  act<KillAll>(done, WorkerExited{0, kSuccess});
  act<Finish>(done, AllAreGone{});
  Policy stopped = policy_of(1, 9);
  act<StopAll>(stopped, SignalReceived{SIGINT});
  act<Wait>(stopped, WorkerExited{0, kCrash});
  act<Finish>(stopped, AllAreGone{});
}

TEST_CASE("a process that does not die is not started a second time") {
  Policy policy = policy_in(Phase::killing, /*max_restarts=*/5);
  act<Finish>(policy, TimeIsUp{});
}
