#include "launcher/job/supervisor.h"

#include <csignal>

#include "test/launcher/fake_job.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;
using Calls = std::vector<std::string>;
using Phase = Policy::Phase;

TEST_CASE("success: joined, started, tidied up, reported, written") {
  FakeJob job(2, /*max_restarts=*/0);
  const int code =
      job.run({[&] { job.exit(1, {}); }, [&] { job.exit(0, {}); }});
  CHECK(code == 0);
  CHECK(job.calls == Calls{"join", "start", "succeeded", "drain"});
  CHECK(job.text.empty());
  CHECK(job.elapsed == 0s);  // did not wait for a timer
}

TEST_CASE("a failure stops the others; the exit code is its own") {
  FakeJob job(3, /*max_restarts=*/0);
  const int code = job.run({[&] { job.exit(1, {.code = 5}); }});
  CHECK(code == 5);
  CHECK(job.calls ==
        Calls{"join", "start", "failed", "end 15", "leave", "drain"});
  CHECK_THAT(job.text,
             Contains("rank 1 failed (exit code 5); stopping the other 2 with "
                      "SIGTERM, and with SIGKILL after 7 s\n") &&
                 Contains("ddprun: rank 1 failed first: exit code 5\n") &&
                 Contains("rank 0 (pid 1000): SIGTERM, stopped by ddprun"));
  CHECK(job.elapsed == 0s);
}

TEST_CASE("a hang: the worker is killed, the others are stopped, all restart") {
  FakeJob job(3, /*max_restarts=*/1);
  job.habits.dies_of_stop_signals = false;
  const Hang hang{.workers = {{.rank = 1, .local_rank = 1}}, .timeout = 1s};
  const int code = job.run({[&] { job.post(WorkersHang{hang}); },
                            [&] { job.exit(0, {.signal = SIGTERM}); },
                            [&] { job.exit(2, {.signal = SIGTERM}); },
                            [&] {
                              for (const int rank : {0, 1, 2}) {
                                job.exit(rank, {});
                              }
                            }});
  CHECK(code == 0);
  CHECK(job.calls == Calls{"join",
                           "start",
                           "failed",
                           "end 15",
                           "kill rank 1",
                           "join",
                           "start",
                           "succeeded",
                           "drain"});
  CHECK_THAT(job.text,
             Contains("rank 1 hangs: no progress for 0.0 s") &&
                 Contains("ending it with SIGKILL, and all others with "
                          "SIGTERM\n") &&
                 Contains("restart 1 of 1\n"));
  CHECK(job.elapsed == 0s);
}

TEST_CASE("sentences count one and several workers") {
  const auto said_of_hang = [](int workers) {
    FakeJob job(2, /*max_restarts=*/0);
    Hang hang{.workers = {{.rank = 0, .local_rank = 0}}, .timeout = 1s};
    if (workers == 2) {
      hang.workers.push_back({.rank = 1, .local_rank = 1});
    }
    job.run({[&] { job.post(WorkersHang{hang}); }});
    return job.text;
  };
  CHECK_THAT(said_of_hang(1),
             Contains("rank 0 hangs: ") &&
                 Contains("; ending it with SIGKILL, and all others with "
                          "SIGTERM\n"));
  CHECK_THAT(
      said_of_hang(2),
      Contains("ranks 0-1 hang: ") && Contains("; ending them with SIGKILL\n"));
  FakeJob job(2, /*max_restarts=*/0);
  job.run({[&] { job.exit(1, {.code = 5}); }});
  CHECK_THAT(job.text, Contains("; stopping the other one with SIGTERM, "));
}

TEST_CASE("those who ignore SIGTERM get SIGKILL after the grace period") {
  FakeJob job(2, /*max_restarts=*/0);
  job.habits.dies_of_stop_signals = false;
  CHECK(job.run({[&] { job.exit(0, {.code = 5}); }}) == 5);
  CHECK(job.elapsed == 7s);
  CHECK_THAT(job.text, Contains("ending 1 worker with SIGKILL\n"));
}

TEST_CASE("a rendezvous is left once, at a signal") {
  FakeJob job(2, /*max_restarts=*/0);
  job.habits.dies_of_stop_signals = false;
  job.run({[&] { job.post(SignalReceived{SIGTERM}); },
           [&] {
             CHECK(job.calls.back() == "end 15");
             job.exit(0, {});
             job.exit(1, {});
           }});
  CHECK(std::count(job.calls.begin(), job.calls.end(), "leave") == 1);
}

TEST_CASE("those whom even SIGKILL does not end are named, and left") {
  FakeJob job(2, /*max_restarts=*/3);
  job.habits = {.dies_of_stop_signals = false, .dies_of_kill = false};
  CHECK(job.run({[&] { job.exit(0, {.code = 5}); }}) == 5);
  CHECK(job.elapsed == 14s);  // grace period, then as long for SIGKILL
  CHECK(job.survivors == 1);
  CHECK_THAT(job.text,
             Contains("rank 1 (pid 1001): still there after SIGKILL"));
  CHECK(job.plans.size() == 1);
}

TEST_CASE("restarts: a new world, a new folder, the count in each plan") {
  FakeJob job(2, /*max_restarts=*/2);
  const auto fail = [&] { job.exit(0, {.code = 3}); };
  const int code =
      job.run({fail, fail, [&] { job.exit(0, {}); }, [&] { job.exit(1, {}); }});
  CHECK(code == 0);
  REQUIRE(job.plans.size() == 3);
  for (int attempt = 0; attempt < 3; ++attempt) {
    const WorkerSpec& worker = job.plans[attempt].workers[1];
    const std::string number = std::to_string(attempt);
    CHECK(worker.environment.at("TORCHELASTIC_RESTART_COUNT") == number);
    CHECK(worker.directory == "/run/attempt_" + number + "/1");
  }
  CHECK_THAT(job.text,
             Contains("starting all workers again: restart 1 of 2\n") &&
                 Contains("starting all workers again: restart 2 of 2\n"));
  CHECK(job.elapsed == 0s);
}

TEST_CASE("restarts are used up: the last failure is the exit code") {
  FakeJob job(2, /*max_restarts=*/1);
  const int code = job.run({[&] { job.exit(0, {.code = 3}); },
                            [&] { job.exit(1, {.signal = SIGSEGV}); }});
  CHECK(code == 128 + SIGSEGV);
  CHECK(job.plans.size() == 2);
  CHECK_THAT(job.text,
             Contains("attempt 1 of 2") && Contains("attempt 2 of 2"));
}

TEST_CASE("what a worker leaves behind after a failure is asked at once") {
  FakeJob job(1, /*max_restarts=*/1);
  job.habits.strays = 3;
  CHECK(job.run({[&] {
                   job.habits.strays = 0;
                   job.exit(0, {.code = 3});
                 },
                 [&] { job.exit(0, {}); }}) == 0);
  CHECK(job.plans.size() == 2);
  CHECK(std::count(job.calls.begin(), job.calls.end(), "ask strays") == 3);
  CHECK(job.elapsed == 0s);
  CHECK(job.strays() == 0);
  CHECK_THAT(job.text, !Contains("SIGKILL"));
}

TEST_CASE("what workers leave behind after a success is named, and has time") {
  FakeJob job(1, /*max_restarts=*/0);
  job.habits.strays = 3;
  const std::string line =
      "the workers have ended and left running: upload (pid 2000); SIGTERM "
      "follows after 3500 ms, SIGKILL after 7 s (--grace-period)\n";
  SECTION("it ends by itself before a word is said") {
    CHECK(job.run({[&] { job.exit(0, {}); }, [&] { job.end_strays(); }}) == 0);
    CHECK(job.text.empty());
    CHECK(job.calls == Calls{"join", "start", "succeeded", "drain"});
    CHECK(job.elapsed == 0s);
  }
  SECTION("it ends when it is asked") {
    CHECK(job.run({[&] { job.exit(0, {}); }}) == 0);
    CHECK(job.text == line);
    CHECK(std::count(job.calls.begin(), job.calls.end(), "ask strays") == 3);
    CHECK(job.elapsed == 4s);
  }
  SECTION("a stop signal ends it at once") {
    CHECK(job.run({[&] { job.exit(0, {}); },
                   [&] { job.post(SignalReceived{SIGTERM}); }}) == 0);
    CHECK(std::count(job.calls.begin(), job.calls.end(), "ask strays") == 3);
    CHECK(job.elapsed == 0s);
  }
}

TEST_CASE("what does not obey is killed after the grace period") {
  FakeJob job(1, /*max_restarts=*/0);
  const int code = GENERATE(0, 3);
  job.habits.strays = 3;
  job.habits.strays_obey = false;
  CHECK(job.run({[&] { job.exit(0, {.code = code}); }}) == code);
  CHECK(std::count(job.calls.begin(), job.calls.end(), "kill strays") == 3);
  CHECK(job.elapsed == (code == 0 ? 7500ms : 7000ms));
  CHECK(job.strays() == 0);
  CHECK_THAT(job.text,
             Contains("ending with SIGKILL what the workers left running"));
}

TEST_CASE("what a finished worker left may run while others do") {
  FakeJob job(2, /*max_restarts=*/0);
  job.habits.strays = 1;
  const int code = job.run({[&] { job.exit(1, {}); },
                            [&] {
                              CHECK(job.calls == Calls{"join", "start"});
                              CHECK(job.strays() == 1);
                            },
                            [&] { job.post(SignalReceived{SIGUSR1}); },
                            [&] { job.exit(0, {}); }});
  CHECK(code == 0);
  CHECK(job.calls == Calls{"join",
                           "start",
                           "pass 10",
                           "end 15",
                           "ask strays",
                           "succeeded",
                           "drain"});
}

TEST_CASE("a stray that nobody can kill holds a job up for a time") {
  FakeJob job(1, /*max_restarts=*/5);
  job.habits.strays = 1;
  job.habits.strays_obey = job.habits.strays_die = false;
  CHECK(job.run({[&] { job.exit(0, {.code = 3}); }}) == 3);
  CHECK(job.elapsed == 14s);
  CHECK(job.plans.size() == 1);
}

TEST_CASE("signals are seen while the hosts join") {
  FakeJob job(2, /*max_restarts=*/5);
  job.answers_joins = false;
  const int code = job.run({[&] { job.post(SignalReceived{SIGUSR1}); },
                            [&] { job.post(RendezvousNote{"alone"}); },
                            [&] { job.post(SignalReceived{SIGTERM}); }});
  CHECK(code == 128 + SIGTERM);
  CHECK_THAT(job.text, Contains("alone\n"));
  CHECK(job.calls == Calls{"join", "leave", "drain"});
  CHECK_THAT(
      job.text,
      Contains("SIGTERM came\n") && Contains("ddprun: stopped by SIGTERM\n"));
  CHECK(job.elapsed == 0s);
}

TEST_CASE("the exit barrier: a success waits for the other hosts") {
  FakeJob job(1, /*max_restarts=*/0);
  job.answers_success = false;
  const auto succeed = [&] { job.exit(0, {}); };
  SECTION("which succeed") {
    CHECK(job.run({succeed, [&] { job.post(JobClosed{0}); }}) == 0);
    CHECK(job.text.empty());
  }
  SECTION("of which one fails for good") {
    CHECK(job.run({succeed, [&] { job.post(JobClosed{9}); }}) == 9);
    CHECK_THAT(job.text, Contains("failed on another host"));
  }
  SECTION("of which one is lost: all workers run again") {
    CHECK(job.run({succeed,
                   [&] {
                     job.post(WorldBroken{WorldBroken::Change::vanished, "b"});
                   },
                   succeed,
                   [&] { job.post(JobClosed{0}); }}) == 0);
    REQUIRE(job.plans.size() == 2);
    CHECK(job.plans[1].workers[0].directory == "/run/attempt_1/0");
    CHECK(job.plans[1].workers[0].environment.at(
              "TORCHELASTIC_RESTART_COUNT") == "0");
  }
  SECTION("until somebody loses patience") {
    CHECK(job.run({succeed, [&] { job.post(SignalReceived{SIGINT}); }}) ==
          128 + SIGINT);
  }
}

TEST_CASE("a program that cannot be started: its code, and what came before") {
  FakeJob job(2, /*max_restarts=*/1);
  SECTION("at once") {
    job.habits.can_start = false;
    CHECK(job.run({}) == 127);
    CHECK(job.text == "ddprun: program x does not exist\n");
  }
  SECTION("at the restart: the report of the first failure is not lost") {
    CHECK(job.run({[&] {
      job.habits.can_start = false;
      job.exit(0, {.code = 3});
    }}) == 127);
    CHECK_THAT(job.text,
               Contains("rank 0 failed first: exit code 3") &&
                   Contains("ddprun: program x does not exist\n"));
  }
  CHECK(job.elapsed == 0s);
}

TEST_CASE("the output is awaited, but not for ever once asked to end") {
  FakeJob job(1, /*max_restarts=*/0);
  job.has_reader = false;
  const auto succeed = [&] { job.exit(0, {}); };
  SECTION("a reader that comes back") {
    CHECK(job.run({succeed, [&] { job.post(OutputDrained{}); }}) == 0);
    CHECK(job.elapsed == 0s);
  }
  SECTION("a signal gives the rest up") {
    CHECK(job.run({succeed, [&] { job.post(SignalReceived{SIGTERM}); }}) == 0);
    CHECK(job.elapsed == 0s);
  }
  SECTION("asked to end before: a second") {
    CHECK(job.run({[&] { job.post(SignalReceived{SIGTERM}); }}) ==
          128 + SIGTERM);
    CHECK(job.elapsed == 1s);
  }
}

namespace {

/// Returns the steps that bring a job of two workers to a phase.
std::vector<std::function<void()>> way_to(Phase phase, FakeJob& job) {
  const auto succeed = [&job](int local_rank) {
    return [&job, local_rank] { job.exit(local_rank, {}); };
  };
  switch (phase) {
    case Phase::joining:
      job.answers_joins = false;
      return {[] {}};
    case Phase::running:
      return {[] {}};
    case Phase::stopping:
      job.habits.dies_of_stop_signals = false;
      return {[&job] { job.exit(0, {.code = 3}); }};
    case Phase::killing:
      job.habits = {.dies_of_stop_signals = false, .dies_of_kill = false};
      return {[&job] { job.exit(0, {.code = 3}); },
              [&job] { job.post(TimerFired{Timer::grace}); }};
    case Phase::preempted:
      job.job.options.on_preempt = Preemption{SIGUSR1, 10s};
      job.habits.who_asks = {0, 1};
      return {[&job] { job.post(SignalReceived{SIGUSR1}); }};
    case Phase::waiting:
      job.answers_success = false;
      return {succeed(0), succeed(1)};
    case Phase::draining:
      job.has_reader = false;
      return {succeed(0), succeed(1)};
    case Phase::done:
      break;
  }
  return {};
}

/// All events of a job except StartFailed, which only answers a start.
const std::vector<Event> kEvents = {
    WorldFormed{{.generation = 8, .restarts = 1, .world_size = 2}},
    WorldBroken{WorldBroken::Change::left, "b"},
    RendezvousLost{"gone"},
    RendezvousNote{"no ddprun there"},
    JobClosed{0},
    JobClosed{9},
    WorkerExited{1, {}},
    WorkerExited{1, {.code = 4}},
    ChildrenRemain{},
    AllAreGone{},
    SignalReceived{SIGTERM},
    SignalReceived{SIGINT},
    SignalReceived{SIGUSR1},
    SignalReceived{SIGTSTP},
    SignalReceived{SIGCONT},
    TimerFired{Timer::grace},
    TimerFired{Timer::kill},
    TimerFired{Timer::drain},
    TimerFired{Timer::preempt},
    OutputDrained{}};

void let_happen(const Event& event, FakeJob& job) {
  if (const auto* exit = std::get_if<WorkerExited>(&event)) {
    job.exit(exit->local_rank, exit->status);  // if it is alive
    job.post(TimerFired{Timer::drain});        // causes an event in any case
  } else {
    job.post(event);
  }
}

}  // namespace

TEST_CASE(
    "every event in every phase: the job still ends, and leaves nothing") {
  for (const Phase phase : {Phase::joining,
                            Phase::running,
                            Phase::stopping,
                            Phase::killing,
                            Phase::preempted,
                            Phase::waiting,
                            Phase::draining}) {
    for (const Event& event : kEvents) {
      FakeJob job(2, /*max_restarts=*/1);
      auto script = way_to(phase, job);
      Phase reached = Phase::done;
      script.push_back([&] {
        reached = job.phase();
        let_happen(event, job);
      });
      // From now on all processes end when asked, and the rendezvous answers.
      script.push_back([&] {
        job.habits = {};
        job.answers_joins = job.answers_success = job.has_reader = true;
        job.post(SignalReceived{SIGTERM});
      });
      script.push_back([&] { job.post(SignalReceived{SIGTERM}); });
      CAPTURE(static_cast<int>(phase), event.index());
      CHECK_NOTHROW(job.run(script));
      CHECK(reached == phase);
      CHECK(job.alive() == 0);
      CHECK(job.strays() == 0);
      CHECK(job.elapsed <= 15s);
      CHECK(job.events_handled < 30);
    }
  }
}
