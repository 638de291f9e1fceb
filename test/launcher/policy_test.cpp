#include "launcher/job/policy/policy.h"

#include <csignal>

#include "launcher/base/exit_status.h"
#include "test/launcher/policy_text.h"
#include "test/support/catch.h"

using namespace launcher;
using namespace launcher::test;
using namespace std::chrono_literals;
using Phase = Policy::Phase;

namespace {

Policy policy_of(int workers, int max_restarts = 0) {
  return Policy(workers,
                {.max_restarts = max_restarts,
                 .grace_period = 7s,
                 .signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT}});
}

/// Returns a policy of three workers in a phase. A failure leads to the phases
/// stopping and killing.
Policy policy_in(Phase phase, int max_restarts = 0) {
  Policy policy = policy_of(3, max_restarts);
  if (phase == Phase::joining) {
    return policy;
  }
  policy.on(world_of(0, 0));
  if (phase == Phase::stopping || phase == Phase::killing) {
    policy.on(WorkerExited{0, kFailure});
  }
  if (phase == Phase::killing) {
    policy.on(TimerFired{Timer::grace});
  }
  if (phase >= Phase::waiting) {
    for (const int local_rank : {0, 1, 2}) {
      policy.on(WorkerExited{local_rank, kSuccess});
    }
    policy.on(AllAreGone{});
  }
  if (phase >= Phase::draining) {
    policy.on(JobClosed{0});
  }
  if (phase == Phase::done) {
    policy.on(OutputDrained{});
  }
  REQUIRE(policy.phase() == phase);
  return policy;
}

struct Row {
  Event event;
  const char* expected[7];  // by phase
};

// clang-format off
const Row kTable[] = {
  // event                  joining                               running                                              stopping                                          killing                                          waiting                                     draining   done
  {world_of(1, 0),         {"Start 1 -> running",                 "-",                                                 "-",                                              "-",                                             "-",                                        "-",       "-"}},
  {kBroken,                {"-",                                  "Stop SIGTERM, Arm grace 7000 -> stopping",          "-",                                              "-",                                             "Report broken, Join -> joining",           "-",       "-"}},
  {kLost,                  {"Report lost, Drain -> draining",     "Stop SIGTERM, Arm grace 7000 -> stopping",          "-",                                              "-",                                             "Report lost, Drain -> draining",           "-",       "-"}},
  {JobClosed{0},           {"Report closed, Drain -> draining",   "Stop SIGTERM, Arm grace 7000 -> stopping",          "-",                                              "-",                                             "Report closed, Drain -> draining",         "-",       "-"}},
  {FolderMade{"/run"},     {"Join",                               "-",                                                 "-",                                              "-",                                             "-",                                        "-",       "-"}},
  {RendezvousNote{"x"},    {"-",                                  "-",                                                 "-",                                              "-",                                             "-",                                        "-",       "-"}},
  {WorkersStarted{},       {"-",                                  "-",                                                 "-",                                              "-",                                             "-",                                        "-",       "-"}},
  {WorkerExited{1, {}},    {"-",                                  "-",                                                 "-",                                              "-",                                             "-",                                        "-",       "-"}},
  {WorkerExited{1, {.code = 3}},
                           {"-",                                  "Send rank 11, Stop SIGTERM, Arm grace 7000 -> stopping",
                                                                                                                       "-",                                              "-",                                             "-",                                        "-",       "-"}},
  {WorkersHang{{.workers = {{.rank = 12, .local_rank = 2}, {.rank = 10}}}},
                           {"-",                                  "Send rank 12, Stop SIGTERM, Arm grace 7000, Kill 2 0 SIGKILL -> stopping",
                                                                                                                       "-",                                              "-",                                             "-",                                        "-",       "-"}},
  {StartFailed{127, "x"},  {"Leave, Report start, Drain -> draining", "Send rank 10, Kill, Arm kill 7000 -> killing",      "Kill",                                           "-",                                             "-",                                        "-",       "-"}},
  {ChildrenRemain{},       {"-",                                  "-",                                                 "TerminateStrays",                                      "KillStrays",                                    "-",                                        "-",       "-"}},
  {AllAreGone{},           {"-",                                  "-",                                                 "Disarm grace -> waiting",
                                                                                                                                                                         "Disarm kill -> waiting",
                                                                                                                                                                                                                          "-",                                        "-",       "-"}},
  {SignalReceived{SIGTERM},
                           {"Leave, Report signal, Arm drain 1000, Drain -> draining",
                                                                  "Leave, Stop SIGTERM, Arm grace 7000 -> stopping",   "Leave, Stop SIGTERM",                            "Leave",                                         "Leave, Report signal, Arm drain 1000, Drain -> draining",
                                                                                                                                                                                                                                                                      "-> done", "-"}},
  {SignalReceived{SIGUSR1},
                           {"-",                                  "Pass SIGUSR1",                                      "Pass SIGUSR1",                                   "Pass SIGUSR1",                                  "-",                                        "-",       "-"}},
  {SignalReceived{SIGTSTP},
                           {"-",                                  "Pass SIGSTOP",                                      "-",                                              "-",                                             "-",                                        "-",       "-"}},
  {SignalReceived{SIGCONT},
                           {"-",                                  "Pass SIGCONT",                                      "-",                                              "-",                                             "-",                                        "-",       "-"}},
  {TimerFired{Timer::grace},
                           {"-",                                  "-",                                                 "Kill, Arm kill 7000 -> killing",                 "-",                                             "-",                                        "-",       "-"}},
  {TimerFired{Timer::kill},
                           {"-",                                  "-",                                                 "-",                                              "Leave, Report failure, Drain -> draining",      "-",                                        "-",       "-"}},
  {TimerFired{Timer::drain},
                           {"-",                                  "-",                                                 "-",                                              "-",                                             "-",                                        "-> done", "-"}},
  {OutputDrained{},        {"-",                                  "-",                                                 "-",                                              "-",                                             "-",                                        "-> done", "-"}},
};
// clang-format on

}  // namespace

TEST_CASE("every event in every phase") {
  std::vector<bool> seen(std::variant_size_v<Event>);
  for (const Row& row : kTable) {
    seen[row.event.index()] = true;
    for (int phase = 0; phase <= static_cast<int>(Phase::done); ++phase) {
      Policy policy = policy_in(static_cast<Phase>(phase));
      CAPTURE(row.event.index(), text_of(static_cast<Phase>(phase)));
      CHECK(step(policy, row.event) == row.expected[phase]);
    }
  }
  CHECK(std::count(seen.begin(), seen.end(), true) ==
        std::variant_size_v<Event>);
}

TEST_CASE("a job joins when its folder is there") {
  Policy policy = policy_of(2);
  CHECK(step(policy, FolderMade{"/run"}) == "Join");
  CHECK(policy.phase() == Phase::joining);
  CHECK(policy.alive() == 0);
}

TEST_CASE("success: the last worker's end is awaited to the last process") {
  Policy policy = policy_in(Phase::running);
  CHECK(policy.alive() == 3);
  CHECK(step(policy, WorkerExited{1, kSuccess}) == "-");
  CHECK(step(policy, WorkerExited{0, kSuccess}) == "-");
  CHECK(policy.alive() == 1);
  CHECK(step(policy, WorkerExited{2, kSuccess}) == "Arm grace 500 -> stopping");
  CHECK(step(policy, ChildrenRemain{}) == "-");
  const bool ends_by_itself = GENERATE(true, false);
  if (!ends_by_itself) {
    CHECK(step(policy, TimerFired{Timer::grace}) == "NameLeft, Arm grace 3500");
    CHECK(step(policy, ChildrenRemain{}) == "-");
    CHECK(step(policy, TimerFired{Timer::grace}) ==
          "Stop SIGTERM, TerminateStrays, Arm grace 3500");
    CHECK(step(policy, ChildrenRemain{}) == "TerminateStrays");
  }
  if (ends_by_itself || GENERATE(true, false)) {
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Send success -> waiting");
  } else {
    CHECK(step(policy, TimerFired{Timer::grace}) ==
          "Kill, Arm kill 7000 -> killing");
    CHECK(step(policy, ChildrenRemain{}) == "KillStrays");
    CHECK(step(policy, AllAreGone{}) == "Disarm kill, Send success -> waiting");
  }
  CHECK(step(policy, JobClosed{0}) == "Report closed, Drain -> draining");
  CHECK(step(policy, OutputDrained{}) == "-> done");
}

TEST_CASE("what an attempt left takes no grace period from the next one") {
  Policy policy = policy_of(1);
  policy.on(world_of(0, 0));
  CHECK(step(policy, WorkerExited{0, kSuccess}) == "Arm grace 500 -> stopping");
  policy.on(kBroken);
  policy.on(AllAreGone{});
  REQUIRE(policy.phase() == Phase::joining);
  policy.on(world_of(1, 0));
  policy.on(WorkerExited{0, kFailure});
  policy.on(ChildrenRemain{});
  CHECK(step(policy, TimerFired{Timer::grace}) ==
        "Kill, Arm kill 7000 -> killing");
}

TEST_CASE("stop signals are passed on as they are") {
  const int number = GENERATE(SIGTERM, SIGINT, SIGHUP, SIGQUIT);
  Policy policy = policy_in(Phase::running);
  CHECK(step(policy, SignalReceived{number}) ==
        "Leave, Stop " + signal_name(number) + ", Arm grace 7000 -> stopping");
}

TEST_CASE("which signals end a job is the user's choice") {
  Policy policy(1, {.grace_period = 7s, .signals = {SIGUSR1}});
  policy.on(WorldFormed{World{}});
  CHECK(step(policy, SignalReceived{SIGTERM}) == "Pass SIGTERM");
  CHECK(step(policy, SignalReceived{SIGUSR1}) ==
        "Leave, Stop SIGUSR1, Arm grace 7000 -> stopping");
}

TEST_CASE("without workers each signal that ends programs ends the job") {
  const int number = GENERATE(SIGTERM, SIGINT, SIGHUP, SIGQUIT);
  Policy policy(1, {.signals = {SIGUSR1}});
  CHECK(step(policy, SignalReceived{number}) ==
        "Leave, Report signal, Arm drain 1000, Drain -> draining");
  CHECK(step(policy, SignalReceived{number}) == "-> done");
}

TEST_CASE("stopping: exits are awaited, however they end") {
  const auto status = GENERATE(kSuccess, kFailure, kCrash);
  Policy policy = policy_in(Phase::stopping);
  CHECK(step(policy, WorkerExited{1, status}) == "-");
  CHECK(step(policy, WorkerExited{2, status}) == "-");
  CHECK(policy.alive() == 0);
  CHECK(step(policy, AllAreGone{}) == "Disarm grace -> waiting");
}

TEST_CASE("a process that is killed has some seconds, whatever the grace") {
  Policy policy(1, {.grace_period = 0s, .signals = {}});
  policy.on(world_of(0, 0));
  CHECK(step(policy, WorkerExited{0, kFailure}) ==
        "Send rank 10, Stop SIGTERM, Arm grace 0 -> stopping");
  CHECK(step(policy, TimerFired{Timer::grace}) ==
        "Kill, Arm kill 5000 -> killing");
  Policy patient(1, {.grace_period = 600s, .signals = {}});
  patient.on(world_of(0, 0));
  step(patient, WorkerExited{0, kFailure});
  CHECK(step(patient, TimerFired{Timer::grace}) ==
        "Kill, Arm kill 30000 -> killing");
}

TEST_CASE("stopping: only a second signal from the keyboard is impatient") {
  Policy policy = policy_in(Phase::running);
  step(policy, SignalReceived{SIGHUP});
  // A closing terminal and its shell send one SIGHUP each.
  CHECK(step(policy, SignalReceived{SIGHUP}) == "Stop SIGHUP");
  CHECK(step(policy, SignalReceived{SIGTERM}) == "Stop SIGTERM");
  CHECK(step(policy, SignalReceived{SIGINT}) == "Stop SIGINT");
  CHECK(step(policy, SignalReceived{SIGINT}) ==
        "Disarm grace, Kill, Arm kill 7000 -> killing");
  CHECK(step(policy, AllAreGone{}) ==
        "Disarm kill, Report signal, Arm drain 1000, Drain -> draining");
}

TEST_CASE("a failure is restarted as often as allowed") {
  Policy policy = policy_of(2, /*max_restarts=*/2);
  for (int restarts = 0; restarts < 2; ++restarts) {
    CHECK(step(policy, world_of(restarts, restarts)) ==
          "Start " + std::to_string(restarts) + " -> running");
    CHECK(policy.alive() == 2);
    step(policy, WorkerExited{0, kFailure});
    step(policy, WorkerExited{1, kCrash});
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report failure, Join -> joining");
  }
  step(policy, world_of(2, 2));
  step(policy, WorkerExited{1, kFailure});
  step(policy, WorkerExited{0, kCrash});
  CHECK(step(policy, AllAreGone{}) == "Disarm grace -> waiting");
  CHECK(step(policy, JobClosed{3}) == "Report failure, Drain -> draining");
}

namespace {

/// Returns the end of the job, caused by rank `rank`.
JobClosed closed_by(int rank) {
  JobClosed closed{9, "a rank failed"};
  closed.first = FirstFailure{rank, "b"};
  return closed;
}

}  // namespace

TEST_CASE("of hosts that fail each reports its own failure, and the first") {
  const auto phase = GENERATE(Phase::stopping, Phase::killing, Phase::waiting);
  const auto rank = GENERATE(9, 10, 12, 13);
  const bool is_waiting = phase == Phase::waiting;
  Policy policy = policy_in(is_waiting ? Phase::stopping : phase);
  if (is_waiting) {
    policy.on(AllAreGone{});
  }
  REQUIRE(policy.phase() == phase);
  Actions end = policy.on(closed_by(rank));
  if (!is_waiting) {
    CHECK(end.empty());
    end = policy.on(AllAreGone{});
    end.erase(end.begin());  // disarms the timer
  }
  REQUIRE(end.size() == 2);
  const auto& report = std::get<WriteReport>(end.at(0));
  CHECK(text_of(report.cause) == "failure");
  REQUIRE(report.first);
  CHECK(report.first->rank == rank);
}

TEST_CASE("a hang is reported where it is, whoever failed first") {
  Policy policy = policy_in(Phase::running);
  policy.on(WorkersHang{{.workers = {{.rank = 12, .local_rank = 2}}}});
  policy.on(closed_by(9));
  CHECK(step(policy, AllAreGone{}) ==
        "Disarm grace, Report hang, Drain -> draining");
}

TEST_CASE("a last failure waits for the other hosts' news, and what ends it") {
  Policy policy = policy_of(3);
  policy.on(world_of(0, 0));
  policy.on(WorkerExited{0, kFailure});
  policy.on(AllAreGone{});
  REQUIRE(policy.phase() == Phase::waiting);
  const std::string end = "Leave, Report failure, Drain -> draining";
  CHECK(step(policy, SignalReceived{SIGUSR1}) == "-");
  CHECK(step(policy, AllAreGone{}) == "-");
  SECTION("a stop signal") {
    CHECK(step(policy, SignalReceived{SIGTERM}).find("Leave, Report failure") ==
          0);
  }
  SECTION("a rendezvous that is lost") {
    CHECK(step(policy, kLost) == "Report failure, Drain -> draining");
  }
  SECTION("another host that has vanished, of which ours may have failed") {
    CHECK(step(policy, kBroken) == "Report broken, Join -> joining");
  }
  SECTION("an end of the job by another host's loss") {
    CHECK(step(policy, JobClosed{1, "host b has vanished"}) ==
          "Report failure, Drain -> draining");
  }
  SECTION("another failure that was first, and costs a restart") {
    CHECK(step(policy, WorldBroken{WorldBroken::Change::failed, "b"}) ==
          "Report failure, Join -> joining");
  }
}

TEST_CASE("a job of one host waits for nobody after its last failure") {
  Policy policy = policy_of(1);
  policy.on(WorldFormed{});
  policy.on(WorkerExited{0, kFailure});
  CHECK(step(policy, AllAreGone{}) ==
        "Disarm grace, Leave, Report failure, Drain -> draining");
}

TEST_CASE("a world that breaks costs no restart") {
  Policy policy = policy_of(1, /*max_restarts=*/0);
  for (int generation = 0; generation < 3; ++generation) {
    step(policy, world_of(generation, 0));
    step(policy, kBroken);
    step(policy, WorkerExited{0, kCrash});
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report broken, Join -> joining");
  }
}

TEST_CASE("a failure or success in a world that had broken does not count") {
  const auto phase = GENERATE(Phase::stopping, Phase::killing);
  Policy policy = policy_in(phase, /*max_restarts=*/0);
  SECTION("a failure") {
    CHECK(step(policy, kBroken) == "-");
  }
  SECTION("a failure after that of another host, which costs the restart") {
    CHECK(step(policy, WorldBroken{WorldBroken::Change::failed, "b"}) == "-");
    CHECK_THAT(step(policy, AllAreGone{}),
               Catch::Matchers::EndsWith("Report failure, Join -> joining"));
    return;
  }
  SECTION("a success") {
    policy = policy_in(Phase::running);
    for (const int local_rank : {0, 1, 2}) {
      policy.on(WorkerExited{local_rank, kSuccess});
    }
    CHECK(step(policy, kBroken) == "-");
  }
  CHECK_THAT(step(policy, AllAreGone{}),
             Catch::Matchers::EndsWith("Report broken, Join -> joining"));
}

TEST_CASE("whatever forbids another attempt, the first cause is reported") {
  const auto event = GENERATE(
      Event(SignalReceived{SIGTERM}), Event(kLost), Event(JobClosed{4}));
  const auto phase = GENERATE(Phase::stopping, Phase::killing);
  Policy policy = policy_in(phase, /*max_restarts=*/5);
  policy.on(event);
  const std::string end = step(policy, AllAreGone{});
  CAPTURE(end);
  CHECK(end.find("Report failure") != std::string::npos);
  CHECK(end.find("Join") == std::string::npos);
  CHECK(policy.phase() == Phase::draining);
}

TEST_CASE("a broken world alone ends no job: what does is the cause") {
  Policy policy = policy_in(Phase::running);
  step(policy, kBroken);
  SECTION("a signal") {
    step(policy, SignalReceived{SIGTERM});
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report signal, Arm drain 1000, Drain -> draining");
  }
  SECTION("the end of the job elsewhere") {
    step(policy, JobClosed{4});
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm grace, Report closed, Drain -> draining");
  }
  SECTION("a rendezvous that is lost") {
    step(policy, TimerFired{Timer::grace});
    step(policy, kLost);
    CHECK(step(policy, AllAreGone{}) ==
          "Disarm kill, Report lost, Drain -> draining");
  }
}

TEST_CASE("neither a signal nor a failure to start is restarted") {
  Policy stopped = policy_of(1, 9);
  step(stopped, world_of(0, 0));
  step(stopped, SignalReceived{SIGINT});
  CHECK(step(stopped, AllAreGone{}) ==
        "Disarm grace, Report signal, Arm drain 1000, Drain -> draining");
  Policy failed = policy_of(1, 9);
  step(failed, world_of(0, 0));
  const Actions sent = failed.on(StartFailed{127, "no such program"});
  const auto& outcome = std::get<SendOutcome>(sent.at(0)).outcome;
  CHECK(std::get<HostFailed>(outcome).is_final);
  CHECK(std::get<HostFailed>(outcome).status.code == 127);
  CHECK(failed.alive() == 0);
  CHECK(step(failed, AllAreGone{}) ==
        "Disarm kill, Leave, Report start, Drain -> draining");
}

TEST_CASE("a process that does not die is not started a second time") {
  Policy policy = policy_in(Phase::killing, /*max_restarts=*/5);
  CHECK(step(policy, TimerFired{Timer::kill}) ==
        "Leave, Report failure, Drain -> draining");
}
