#include <csignal>
#include <utility>

#include "launcher/job/policy/policy.h"
#include "test/launcher/policy_text.h"
#include "test/support/catch.h"

using namespace launcher;
using namespace launcher::test;
using namespace std::chrono_literals;

TEST_CASE("a restart can wait: a pause, and what ends it") {
  Policy policy({.worker_count = 1,
                 .max_restarts = 5,
                 .restart_rules = {.first_delay = 2s, .longest_delay = 5s},
                 .grace_period = 7s,
                 .stop_signals = {SIGTERM}});
  const auto fail = [&policy] {
    step(policy, world_of(0, 0));
    step(policy, WorkerExited{0, kFailure});
    return step(policy, AllAreGone{});
  };
  CHECK(fail() == "Disarm grace, Report failure, Arm restart 2000 -> pausing");
  SECTION("the timer: the next start, and twice as long the next time") {
    CHECK(step(policy, TimerFired{Timer::restart}) == "Join -> joining");
    CHECK(fail() ==
          "Disarm grace, Report failure, Arm restart 4000 -> pausing");
    step(policy, TimerFired{Timer::restart});
    CHECK(fail() ==
          "Disarm grace, Report failure, Arm restart 5000 -> pausing");
  }
  SECTION("a stop signal") {
    CHECK(step(policy, SignalReceived{SIGTERM}) ==
          "Leave, Report signal, Arm drain 1000, Drain -> draining");
  }
  SECTION("the end of the job elsewhere") {
    CHECK(step(policy, JobClosed{4}) == "Report closed, Drain -> draining");
  }
  SECTION("nothing else") {
    for (const Event& event : {Event(kBroken),
                               Event(WorkerExited{0, kSuccess}),
                               Event(AllAreGone{}),
                               Event(TimerFired{Timer::grace}),
                               Event(SignalReceived{SIGUSR1})}) {
      CHECK(step(policy, event) == "-");
    }
  }
}

TEST_CASE("a hang is a failure: restarts, and after them its end") {
  Policy policy({.worker_count = 2,
                 .max_restarts = 1,
                 .grace_period = 7s,
                 .stop_signals = {SIGTERM}});
  const WorkersHang hangs{{.workers = {{.rank = 11, .local_rank = 1}}}};
  policy.on(world_of(0, 0));
  CHECK(step(policy, hangs) ==
        "Tell rank 11, Stop SIGTERM, Arm grace 7000, Kill 1 SIGKILL -> "
        "stopping");
  CHECK(step(policy, hangs) == "-");
  CHECK(step(policy, WorkerExited{1, {.signal = SIGKILL}}) == "-");
  CHECK(step(policy, WorkerExited{0, {.signal = SIGTERM}}) == "-");
  CHECK(step(policy, AllAreGone{}) ==
        "Disarm grace, Report hang, Join -> joining");
  policy.on(world_of(1, 1));
  policy.on(hangs);
  CHECK(step(policy, AllAreGone{}) == "Disarm grace -> waiting");
  CHECK(step(policy, JobClosed{137}) == "Report hang, Drain -> draining");
}

TEST_CASE("a hang in a world that was broken before does not count") {
  Policy policy({.worker_count = 1, .stop_signals = {SIGTERM}});
  policy.on(world_of(0, 0));
  policy.on(WorkersHang{{.workers = {{.rank = 10}}}});
  CHECK(step(policy, kBroken) == "-");
  CHECK(step(policy, AllAreGone{}) ==
        "Disarm grace, Report broken, Join -> joining");
}

TEST_CASE("a broken world is followed at once, whatever the delay") {
  Policy policy({.worker_count = 1,
                 .restart_rules = {.first_delay = 2s, .longest_delay = 5s},
                 .grace_period = 7s,
                 .stop_signals = {}});
  step(policy, world_of(0, 0));
  step(policy, kBroken);
  step(policy, WorkerExited{0, kCrash});
  CHECK(step(policy, AllAreGone{}) ==
        "Disarm grace, Report broken, Join -> joining");
}

TEST_CASE("the time limit in every phase") {
  const Policy::Options options{.worker_count = 1,
                                .max_restarts = 1,
                                .grace_period = 7s,
                                .stop_signals = {SIGTERM},
                                .time_limit = 60s};
  const TimerFired up{Timer::limit};
  Policy policy(options);
  REQUIRE(policy.begin().size() == 2);
  CHECK(text_of(policy.begin()[0]) == "Arm limit 60000");
  SECTION("joining") {
    CHECK(step(policy, up) ==
          "Leave, Report time, Arm drain 1000, Drain -> draining");
  }
  SECTION("running: stopped, and not started again") {
    step(policy, world_of(0, 0));
    CHECK(step(policy, up) ==
          "Leave, Stop SIGTERM, Arm grace 7000 -> stopping");
    step(policy, WorkerExited{0, kFailure});
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report time, Arm drain 1000, Drain -> draining");
  }
  SECTION("stopping after a failure: reported, and not started again") {
    step(policy, world_of(0, 0));
    step(policy, WorkerExited{0, kFailure});
    CHECK(step(policy, up) == "Leave");
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report failure, Drain -> draining");
  }
  SECTION("stopping for a broken world: the time is the cause") {
    step(policy, world_of(0, 0));
    step(policy, kBroken);
    CHECK(step(policy, up) == "Leave");
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report time, Arm drain 1000, Drain -> draining");
  }
  SECTION("waiting for the other hosts after a failure: that is reported") {
    step(policy, world_of(1, 1));
    step(policy, WorkerExited{0, kFailure});
    CHECK(step(policy, AllAreGone{}) == "Disarm grace -> waiting");
    CHECK(step(policy, up) == "Leave, Report failure, Drain -> draining");
  }
  SECTION("stopping for another host's failure that was first: so is that") {
    step(policy, world_of(1, 1));
    step(policy, WorkerExited{0, kFailure});
    JobClosed closed{3};
    closed.first = FirstFailure{.rank = 0, .host = "b"};
    CHECK(step(policy, closed) == "-");
    CHECK(step(policy, up) == "-");
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report closed, Drain -> draining");
  }
  SECTION("joining again after another host's failure: the time is the cause") {
    step(policy, world_of(0, 0));
    step(policy, WorldBroken{WorldBroken::Change::failed, "b"});
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report broken, Join -> joining");
    CHECK(step(policy, up) ==
          "Leave, Report time, Arm drain 1000, Drain -> draining");
  }
  SECTION("tidying up after success: it stays one") {
    step(policy, world_of(0, 0));
    step(policy, WorkerExited{0, kSuccess});
    CHECK(step(policy, up) == "-");
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Tell success -> waiting");
    CHECK(step(policy, up) ==
          "Leave, Report time, Arm drain 1000, Drain -> draining");
    CHECK(step(policy, up) == "-");
  }
}

TEST_CASE("a stop is clean when all workers end with 0 in time, if asked for") {
  const bool is_asked_for = GENERATE(true, false);
  Policy policy({.worker_count = 2,
                 .grace_period = 7s,
                 .stop_signals = {SIGTERM},
                 .stops_cleanly = is_asked_for});
  const std::string by_signal =
      "Report signal, Arm drain 1000, Drain -> draining";
  step(policy, world_of(0, 0));
  SECTION("all") {
    step(policy, WorkerExited{0, kSuccess});
    step(policy, SignalReceived{SIGTERM});
    step(policy, WorkerExited{1, kSuccess});
    CHECK(step(policy, AllAreGone{}) ==
          (is_asked_for ? "Disarm grace, Report clean, Arm drain 1000, Drain "
                          "-> draining"
                        : "Disarm grace, " + by_signal));
  }
  SECTION("not one of them") {
    step(policy, SignalReceived{SIGTERM});
    step(policy, WorkerExited{0, kSuccess});
    step(policy, WorkerExited{1, {.signal = SIGTERM}});
    CHECK(step(policy, AllAreGone{}) == "Disarm grace, " + by_signal);
  }
  SECTION("not in time") {
    step(policy, SignalReceived{SIGTERM});
    step(policy, WorkerExited{0, kSuccess});
    step(policy, WorkerExited{1, kSuccess});
    step(policy, TimerFired{Timer::grace});
    CHECK(step(policy, AllAreGone{}) == "Disarm kill, " + by_signal);
  }
}

namespace {

/// Returns whether `actions` report a final failure.
bool tells_final(const Actions& actions) {
  return std::get<HostFailed>(std::get<TellOutcome>(actions.at(0)).outcome)
      .is_final;
}

}  // namespace

TEST_CASE("no restart follows a final exit code, and the others hear of it") {
  Policy policy({.worker_count = 1,
                 .max_restarts = 5,
                 .final_codes = {93, 7},
                 .grace_period = 7s,
                 .stop_signals = {SIGTERM}});
  const auto [status, is_final] =
      GENERATE(std::pair(ExitStatus{.code = 93}, true),
               std::pair(ExitStatus{.code = 7}, true),
               std::pair(ExitStatus{.code = 8}, false),
               std::pair(ExitStatus{.signal = 7}, false));
  policy.on(world_of(0, 0));
  CHECK(tells_final(policy.on(WorkerExited{0, status})) == is_final);
  CHECK(step(policy, AllAreGone{}) ==
        (is_final ? "Disarm grace -> waiting"
                  : "Disarm grace, Report failure, Join -> joining"));
}

TEST_CASE("of hosts with one budget none counts for itself, or pauses") {
  Policy policy(
      {.worker_count = 1,
       .max_restarts = 1,
       .restart_rules = {.window = 60s, .first_delay = 2s, .longest_delay = 5s},
       .grace_period = 7s,
       .stop_signals = {SIGTERM}});
  const auto form = [&](int generation, std::chrono::milliseconds after) {
    WorldFormed formed = world_of(generation, /*restarts=*/generation);
    formed.world.restart_after = after;
    policy.on(formed, Policy::Time(100s));
  };
  form(0, 0ms);
  CHECK(!tells_final(policy.on(WorkerExited{0, kFailure}, Policy::Time(101s))));
  CHECK(step(policy, AllAreGone{}) ==
        "Disarm grace, Report failure, Join -> joining");
  SECTION("in time") {
    form(1, 60s);
    const auto told =
        policy.on(WorkerExited{0, kFailure}, Policy::Time(100s + 59'999ms));
    CHECK(tells_final(told));
    // The decision stays, however long the workers take to end.
    policy.on(TimerFired{Timer::grace}, Policy::Time(200s));
    CHECK(step(policy, AllAreGone{}) == "Disarm kill -> waiting");
  }
  SECTION("later") {
    form(1, 60s);
    CHECK(
        !tells_final(policy.on(WorkerExited{0, kFailure}, Policy::Time(160s))));
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report failure, Join -> joining");
  }
  SECTION("never") {
    form(1, kNever);
    CHECK(tells_final(
        policy.on(WorkerExited{0, kFailure}, Policy::Time(10'000h))));
  }
}
