#include <sys/stat.h>

#include <csignal>

#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;
using ddp::test::TemporaryFolder;

TEST_CASE("a shell that reads its file saves and ends, which is a success") {
  Ddprun job({"--nproc-per-node=3",
              "--max-restarts=3",
              "--on-preempt=USR1:15",
              "sh",
              "-c",
              ": >> $DDPRUN_JOB_DIR/stop_$RANK; echo ready; "
              "until [ -s $DDPRUN_JOB_DIR/stop_$RANK ]; do sleep 0.02; done; "
              "echo saved, $(cat $DDPRUN_JOB_DIR/stop_$RANK)"});
  job.await_out("ready", 3);
  job.signal(SIGUSR1);
  const auto result = job.finish();
  CHECK(result.code() == 0);
  CHECK_THAT(result.err,
             Contains("SIGUSR1 came: telling the workers to save and to end; "
                      "they have 15 s\n"));
  for (const char* rank : {"0", "1", "2"}) {
    CHECK_THAT(result.out,
               Contains("[" + std::string(rank) +
                        "] saved, signal=SIGUSR1 seconds=15\n"));
  }
  CHECK(!result.left_something);
  CHECK(!job.left_files());
}

TEST_CASE("a script sees by the exit code that a job was preempted") {
  const bool is_preempted = GENERATE(true, false);
  Ddprun job(
      {"--nproc-per-node=2",
       "--on-preempt=USR1:15",
       "--preempt-code=85",
       "sh",
       "-c",
       std::string(": >> $DDPRUN_JOB_DIR/stop_$RANK; echo ready; ") +
           (is_preempted
                ? "until [ -s $DDPRUN_JOB_DIR/stop_$RANK ]; do sleep 0.02; done"
                : "")});
  job.await_out("ready", 2);
  if (is_preempted) {
    job.signal(SIGUSR1);
  }
  const auto result = job.finish();
  CHECK(result.code() == (is_preempted ? 85 : 0));
}

TEST_CASE("a worker that catches the signal gets it without its children") {
  // A blocked signal of a lower number comes first: a child that shows SIGALRM
  // has no SIGUSR1.
  const std::string child = in_shell(resource("on_signal")) + " show & ";
  SECTION("which may live until the worker has saved") {
    Ddprun job({"--on-preempt=USR1:15",
                "--grace-period=0.1",
                "sh",
                "-c",
                "trap 'kill -ALRM $child; echo saved; exit 0' USR1; " + child +
                    "child=$!; wait"});
    job.await_out("ready");
    job.signal(SIGUSR1);
    const auto result = job.finish();
    CHECK(result.code() == 0);
    CHECK_THAT(result.out,
               Contains("saved\n") && Contains("signal 14\n") &&
                   !Contains("signal 10\n"));
    CHECK(!result.left_something);
  }
  SECTION("a worker that does not is signalled with its children") {
    Ddprun job({"--on-preempt=USR1:15",
                "--grace-period=0.1",
                "sh",
                "-c",
                child + "wait"});
    job.await_out("ready");
    job.signal(SIGUSR1);
    const auto result = job.finish();
    CHECK_THAT(result.out, Contains("signal 10\n"));
    CHECK(!result.left_something);
  }
}

TEST_CASE(
    "behind a shell the program gets the signal, and the shell its code") {
  const std::string number = GENERATE("10", "15");
  const std::string line =
      GENERATE("sh -c '$PROGRAM; exit $?'",
               "bash -c '$PROGRAM; exit $?'",
               "bash -lc '$PROGRAM; exit $?'",
               "bash -c 'trap \"true\" EXIT; $PROGRAM; exit $?'",
               "bash -c 'trap \"echo of shell\" USR1 TERM; $PROGRAM; exit $?'",
               "sh -c 'trap \"echo of shell\" USR1 TERM; $PROGRAM; exit $?'",
               "sh -c 'trap \"kill -USR1 \\$child\" USR1; "
               "$PROGRAM & child=$!; wait $child; exit $?'",
               "bash -c 'sh -c \"\\$PROGRAM; exit \\$?\"; exit $?'",
               "bash -c 'set -m; $PROGRAM; exit $?'",
               "bash -c 'set -o pipefail; $PROGRAM | cat; exit $?'",
               "sh -c 'setsid --wait $PROGRAM; exit $?'",
               "sh -c 'timeout --foreground 99 $PROGRAM; exit $?'",
               "sh -c '(sleep 100 & exec $PROGRAM); exit $?'");
  CAPTURE(number, line);
  const TemporaryFolder folder;
  const std::string script = folder / "train.sh";
  const std::string program = folder / "program";
  ddp::test::write_file(
      program,
      "#!/bin/sh\nexec " + in_shell(resource("on_signal")) + " catch\n");
  ::chmod(program.c_str(), 0700);
  ddp::test::write_file(
      script,
      "PROGRAM=" + program + "\nexport PROGRAM\n" + line + "\nexit $?\n");
  const int signal = std::stoi(number);
  Ddprun job(
      {signal == SIGTERM ? "--on-preempt=TERM:15" : "--on-preempt=USR1:15",
       "--grace-period=0.1",
       "sh",
       script});
  job.await_out("ready");
  job.signal(signal);
  const auto result = job.finish();
  CHECK(result.code() == 7);
  CHECK_THAT(result.out, Contains("signal " + number + "\n"));
  CHECK(result.out.find("signal ") == result.out.rfind("signal "));
  CHECK_THAT(result.err, !Contains("is up"));
  CHECK(!result.left_something);
}

TEST_CASE("a program that does not ask gets the signal, and time to end") {
  Ddprun job({"--max-restarts=3",
              "--on-preempt=USR1:0.3",
              "--grace-period=0.8",
              resource("on_signal"),
              "show"});
  job.await_out("ready");
  job.signal(SIGUSR1);
  const auto result = job.finish();
  CHECK(result.code() == 128 + SIGUSR1);
  CHECK(result.out == "[0] ready\n[0] signal 10\n[0] signal 15\n");
  CHECK_THAT(result.err,
             Contains("SIGUSR1 came: passing it on to the workers; they have "
                      "300 ms\n") &&
                 Contains("the time of --on-preempt is up: stopping 1 worker "
                          "with SIGTERM") &&
                 Contains("ending 1 worker with SIGKILL") &&
                 Contains("stopped by SIGUSR1"));
  CHECK(!result.left_something);
}

/// Lets a shell say "ready" and wait for a signal. Its child is a program by
/// then: a child that is still the shell has its traps, and would get the
/// signal.
constexpr const char* kWait =
    "sh -c 'echo ready; exec sleep 600' & while :; do wait; done";

TEST_CASE("who asks, and goes on all the same, gets SIGTERM") {
  Ddprun job({"--nproc-per-node=2",
              "--on-preempt=TERM:5",
              "sh",
              "-c",
              "[ $RANK = 0 ] && : >> $DDPRUN_JOB_DIR/stop_$RANK; "
              "trap 'kill $!; echo term; exit 0' TERM; " +
                  std::string(kWait)});
  job.await_out("ready", 2);
  job.signal(SIGTERM);
  job.await_out("[1] term");
  const auto result = job.finish();
  CHECK(result.code() == 128 + SIGTERM);
  CHECK_THAT(
      result.err,
      Contains("SIGTERM came: telling 1 of 2 workers to save and to end, "
               "and passing it on to the other, which does not ask") &&
          Contains("is up: stopping 1 worker with SIGTERM"));
  CHECK_THAT(result.out, Contains("[0] term\n"));
}

TEST_CASE("a program that the signal kills is not started again") {
  Ddprun job({"--nproc-per-node=2",
              "--max-restarts=3",
              "--on-preempt=USR1:15",
              "sh",
              "-c",
              "echo ready; exec sleep 30"});
  job.await_out("ready", 2);
  job.signal(SIGUSR1);
  const auto result = job.finish();
  CHECK(result.code() == 128 + SIGUSR1);
  CHECK_THAT(result.err,
             Contains("stopped by SIGUSR1") && !Contains("restart 1"));
}

TEST_CASE("what is no file is not told by one") {
  Ddprun job({"--on-preempt=USR1:15",
              "sh",
              "-c",
              "mkdir $DDPRUN_JOB_DIR/stop_$RANK; "
              "trap 'kill $!; echo got it; exit 0' USR1; " +
                  std::string(kWait)});
  job.await_out("ready");
  job.signal(SIGUSR1);
  const auto result = job.finish();
  CHECK(result.code() == 0);
  CHECK_THAT(result.out, Contains("got it"));
  CHECK(!job.left_files());
}
