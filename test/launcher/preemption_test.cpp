#include <csignal>

#include "launcher/job/policy/policy.h"
#include "launcher/options/options.h"
#include "test/launcher/fake_job.h"
#include "test/launcher/policy_text.h"
#include "test/support/catch.h"

using namespace launcher;
using namespace launcher::test;
using Catch::Contains;
using Calls = std::vector<std::string>;
using Phase = Policy::Phase;

namespace {

const SignalReceived kPreemption{SIGUSR1};
constexpr ExitStatus kBySignal{.signal = SIGUSR1};

/// Returns a policy of two workers, which `signal` asks to save and end.
Policy preemptible(int signal) {
  return {2,
          {.max_restarts = 5,
           .on_preempt = Preemption{signal, 60s},
           .grace_period = 7s,
           .signals = {SIGTERM, SIGINT}}};
}

/// Returns a policy with two workers that were asked to save and end.
Policy preempted() {
  Policy policy = preemptible(SIGUSR1);
  policy.on(world_of(0, 0));
  CHECK(step(policy, kPreemption) ==
        "Request SIGUSR1, Arm preempt 60000 -> preempted");
  return policy;
}

constexpr const char* kStop = "Leave, Stop SIGTERM, Arm grace 7000 -> stopping";
constexpr const char* kEndBySignal =
    "Disarm grace, Report signal, Arm drain 1000, Drain -> draining";

}  // namespace

TEST_CASE("workers that save and end with 0 make a success of the job") {
  Policy policy = preempted();
  CHECK(step(policy, WorkerExited{1, kSuccess}) == "-");
  CHECK(step(policy, WorkerExited{0, kSuccess}) == "Arm grace 500 -> stopping");
  CHECK(step(policy, TimerFired{Timer::preempt}) == "-");
  CHECK(step(policy, AllAreGone{}) == "Disarm grace, Send success -> waiting");
  CHECK(step(policy, kPreemption) == "-");
  CHECK(step(policy, JobClosed{0}) == "Report closed, Drain -> draining");
}

TEST_CASE("who fails while others save takes no time from them") {
  Policy policy = preempted();
  const auto status = GENERATE(kFailure, kCrash, kBySignal);
  CHECK(step(policy, WorkerExited{1, status}) == "-");
  CHECK(policy.phase() == Phase::preempted);
  CHECK(step(policy, WorkerExited{0, kSuccess}) == kStop);
  // A worker that the signal itself ended has not failed.
  CHECK(step(policy, AllAreGone{}) ==
        (status.signal == SIGUSR1
             ? kEndBySignal
             : "Disarm grace, Report failure, Drain -> draining"));
}

TEST_CASE("the first failure while others save is the cause") {
  Policy policy = preempted();
  policy.on(WorkerExited{1, {.code = 85}});
  policy.on(WorkerExited{0, kCrash});
  const Actions actions = policy.on(AllAreGone{});
  const auto* report = std::get_if<WriteReport>(&actions.at(1));
  REQUIRE(report != nullptr);
  CHECK(failure_of(report->cause)->code == 85);
}

TEST_CASE("when the time is up workers get SIGTERM, the grace and SIGKILL") {
  Policy policy = preempted();
  policy.on(WorkerExited{1, kSuccess});
  CHECK(step(policy, TimerFired{Timer::preempt}) == kStop);
  SECTION("they end") {
    policy.on(WorkerExited{0, kFailure});
    CHECK(step(policy, AllAreGone{}) == kEndBySignal);
  }
  SECTION("they do not") {
    CHECK(step(policy, TimerFired{Timer::grace}) ==
          "Kill, Arm kill 7000 -> killing");
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm kill, Report signal, Arm drain 1000, Drain -> draining");
  }
}

TEST_CASE("what else can happen to workers that save") {
  Policy policy = preempted();
  SECTION("the signal again") {
    CHECK(step(policy, kPreemption) == "-");
  }
  SECTION("a stop signal") {
    CHECK(step(policy, SignalReceived{SIGINT}) ==
          "Leave, Stop SIGINT, Arm grace 7000 -> stopping");
  }
  SECTION("another signal") {
    CHECK(step(policy, SignalReceived{SIGUSR2}) == "Pass SIGUSR2");
    CHECK(step(policy, SignalReceived{SIGTSTP}) == "Pass SIGSTOP");
  }
  SECTION("a hang") {
    CHECK(step(policy,
               WorkersHang{{.workers = {{.rank = 11, .local_rank = 1}}}}) ==
          "Leave, Stop SIGTERM, Arm grace 7000, Kill 1 SIGKILL -> stopping");
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report hang, Drain -> draining");
  }
  SECTION("a broken world takes no time from them, and nobody joins again") {
    CHECK(step(policy, kBroken) == "Leave");
    CHECK(step(policy, WorkerExited{0, kSuccess}) == "-");
    CHECK(step(policy, WorkerExited{1, kSuccess}) ==
          "Arm grace 500 -> stopping");
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report success, Drain -> draining");
  }
  SECTION("the end of the job elsewhere takes no time from them") {
    CHECK(step(policy, JobClosed{4}) == "-");
    CHECK(step(policy, WorkerExited{0, kFailure}) == "-");
    CHECK(step(policy, WorkerExited{1, kSuccess}) ==
          "Stop SIGTERM, Arm grace 7000 -> stopping");
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report closed, Drain -> draining");
  }
  SECTION("a rendezvous that is lost takes no time from them") {
    CHECK(step(policy, kLost) == "-");
    CHECK(step(policy, TimerFired{Timer::preempt}) ==
          "Stop SIGTERM, Arm grace 7000 -> stopping");
    CHECK(step(policy, AllAreGone{}) == kEndBySignal);
  }
  SECTION("a program that cannot be executed") {
    CHECK(step(policy, StartFailed{127, "x"}) ==
          "Send rank 10, Kill, Arm kill 7000 -> killing");
  }
  SECTION("no worker had started") {
    CHECK(step(policy, AllAreGone{}) ==
          "Leave, Report signal, Arm drain 1000, Drain -> draining");
  }
  SECTION("nothing") {
    for (const Event& event : {Event(ChildrenRemain{}),
                               Event(TimerFired{Timer::grace}),
                               Event(RendezvousNote{"x"}),
                               Event(OutputDrained{})}) {
      CHECK(step(policy, event) == "-");
    }
  }
}

TEST_CASE("pre-empted before or after its workers, a job starts none again") {
  Policy policy = preemptible(SIGUSR1);
  SECTION("joining") {
    CHECK(step(policy, kPreemption) ==
          "Leave, Report signal, Arm drain 1000, Drain -> draining");
  }
  SECTION("stopping and killing after a failure") {
    policy.on(world_of(0, 0));
    policy.on(WorkerExited{0, kFailure});
    if (GENERATE(false, true)) {
      policy.on(TimerFired{Timer::grace});
    }
    CHECK(step(policy, kPreemption) == "Leave, Pass SIGUSR1");
    CHECK_THAT(step(policy, AllAreGone{}),
               Contains("Report failure, Drain -> draining"));
  }
  SECTION("stopping for a broken world") {
    policy.on(world_of(0, 0));
    policy.on(kBroken);
    CHECK(step(policy, kPreemption) == "Leave, Pass SIGUSR1");
    CHECK(step(policy, AllAreGone{}) == kEndBySignal);
  }
  SECTION("stopping what was left after success, which it stays") {
    policy.on(world_of(0, 0));
    policy.on(WorkerExited{0, kSuccess});
    policy.on(WorkerExited{1, kSuccess});
    CHECK(step(policy, kPreemption) == "Pass SIGUSR1");
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Send success -> waiting");
  }
}

TEST_CASE("a stop signal may be that of a pre-emption, as Slurm's SIGTERM") {
  Policy policy = preemptible(SIGTERM);
  policy.on(world_of(0, 0));
  CHECK(step(policy, SignalReceived{SIGTERM}) ==
        "Request SIGTERM, Arm preempt 60000 -> preempted");
  // SIGTERM reaches a step's processes one by one, and twice before SIGKILL.
  CHECK(step(policy, SignalReceived{SIGTERM}) == "-");
  CHECK(step(policy, SignalReceived{SIGINT}) ==
        "Leave, Stop SIGINT, Arm grace 7000 -> stopping");
}

TEST_CASE(
    "who is told, who gets the signal, and how long all have, in a line") {
  FakeJob job(3, /*max_restarts=*/5);
  job.job.options.on_preempt = Preemption{SIGUSR1, 60s};
  const auto preempt = [&] { job.post(kPreemption); };
  SECTION("all ask, and end") {
    job.habits.who_asks = {0, 1, 2};
    const int code = job.run({preempt,
                              [&] { job.exit(0, {}); },
                              [&] { job.exit(1, {}); },
                              [&] { job.exit(2, {}); }});
    CHECK(code == 0);
    CHECK(job.elapsed == 0s);
    CHECK(job.text ==
          "SIGUSR1 came: telling the workers to save and to end; they have 60 "
          "s\n");
    CHECK(job.calls ==
          Calls{"join", "start", "request 10", "succeeded", "drain"});
  }
  SECTION("some ask, and do not end") {
    job.habits.who_asks = {1, 2};
    const int code =
        job.run({preempt, preempt, [&] { job.exit(0, {.signal = SIGUSR1}); }});
    CHECK(code == 128 + SIGUSR1);
    CHECK(job.elapsed == 60s);
    CHECK_THAT(job.text,
               Contains("SIGUSR1 came: telling 2 of 3 workers to save and to "
                        "end, and passing it on to the other, which does not "
                        "ask; they have 60 s\n") &&
                   Contains("the time of --on-preempt is up: stopping 2 "
                            "workers with SIGTERM, and with SIGKILL after 7 "
                            "s\n") &&
                   Contains("stopped by SIGUSR1") &&
                   !Contains("SIGUSR1 came: passing"));
    CHECK(job.plans.size() == 1);
  }
  SECTION("none asks") {
    CHECK(job.run({preempt}) == 128 + SIGUSR1);
    CHECK_THAT(job.text,
               Contains("SIGUSR1 came: passing it on to the workers; they have "
                        "60 s\n"));
  }
  SECTION("all end with 0, and the user wants a code for that") {
    job.job.options.preempt_code = 85;
    CHECK(job.run({preempt,
                   [&] { job.exit(0, {}); },
                   [&] { job.exit(1, {}); },
                   [&] { job.exit(2, {}); }}) == 85);
  }
  SECTION("all end with a code of their own, which no restart follows") {
    const int code = job.run({preempt,
                              [&] { job.exit(0, {.code = 85}); },
                              [&] { job.exit(1, {.code = 85}); },
                              [&] { job.exit(2, {.code = 85}); }});
    CHECK(code == 85);
    CHECK(job.plans.size() == 1);
  }
}

TEST_CASE("options of pre-emption") {
  const auto parse = [](const std::string& argument) {
    return std::get<LaunchOptions>(parse_options({argument, "p"}, {}));
  };
  CHECK(!parse("--dry-run").on_preempt);
  const auto usual = parse("--on-preempt=USR1").on_preempt;
  REQUIRE(usual);
  CHECK(usual->signal == SIGUSR1);
  CHECK(usual->time == 30s);
  const auto timed = parse("--on-preempt=SIGTERM:0.5").on_preempt;
  REQUIRE(timed);
  CHECK(timed->signal == SIGTERM);
  CHECK(timed->time == 500ms);
  for (const char* wrong : {"",
                            "x",
                            "KILL",
                            "STOP",
                            "TSTP",
                            "CONT",
                            "USR1,USR2",
                            "USR1:",
                            "USR1:x",
                            "USR1:-1",
                            ":5"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(parse("--on-preempt=" + std::string(wrong)),
                      Contains("--on-preempt: ") && Contains("expected") &&
                          Contains("but got"));
  }
}

TEST_CASE("the exit code of a preempted job") {
  const auto parse = [](std::vector<std::string> arguments) {
    arguments.emplace_back("p");
    return std::get<LaunchOptions>(parse_options(std::move(arguments), {}));
  };
  CHECK(!parse({"--on-preempt=USR1"}).preempt_code);
  CHECK(parse({"--on-preempt=USR1", "--preempt-code=85"}).preempt_code == 85);
  CHECK_THROWS_WITH(parse({"--preempt-code=85"}),
                    Contains("--preempt-code: expected --on-preempt"));
  for (const char* wrong : {"0", "256", "-1", "x", ""}) {
    CHECK_THROWS_WITH(
        parse({"--on-preempt=USR1", "--preempt-code=" + std::string(wrong)}),
        Contains("--preempt-code: ") && Contains("from 1 to 255"));
  }
}
