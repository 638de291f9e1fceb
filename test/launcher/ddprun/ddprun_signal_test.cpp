// Signals that ddprun receives, and signals that it sends to its workers.
#include <unistd.h>

#include <csignal>

#include "test/launcher/child_setup.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;

TEST_CASE("a caller that ignores SIGCHLD still gets the exit code") {
  const auto ignore = [] { ignore_signals({SIGCHLD}); };
  const int code = GENERATE(0, 7);
  const std::string command = "exit " + std::to_string(code);
  SECTION("by itself") {
    const auto result = run_ddprun(
        {"--nproc-per-node=2", "sh", "-c", command}, {}, "", {}, ignore);
    CHECK(result.code() == code);
    CHECK(!result.left_something);
  }
  SECTION("a shell") {
    CHECK(run_ddprun({"bash",
                      "-c",
                      "trap '' CHLD; exec " + in_shell(ddprun_path()) +
                          " sh -c '" + command + "'"})
              .code() == code);
  }
}

TEST_CASE("workers get the caller's signal actions, not ddprun's") {
  const bool are_ignored = GENERATE(false, true);
  const auto in_child = [are_ignored] {
    for (const int number : {SIGCHLD, SIGPIPE, SIGXFSZ}) {
      ::signal(number, are_ignored ? SIG_IGN : SIG_DFL);
    }
  };
  const auto lines =
      run_ddprun({"grep", "SigIgn", "/proc/self/status"}, {}, "", {}, in_child)
          .lines_of("[0] SigIgn:");
  REQUIRE(lines.size() == 1);
  const auto mask = std::stoull(lines.front(), nullptr, 16);
  for (const int number : {SIGCHLD, SIGPIPE, SIGXFSZ}) {
    CAPTURE(number);
    CHECK(((mask >> (number - 1)) & 1) == (are_ignored ? 1 : 0));
  }
}

TEST_CASE("a signal that ends a program ends the workers, and so the job") {
  const int number = GENERATE(SIGALRM, SIGXCPU, SIGPWR, SIGRTMIN + 3);
  Ddprun job({"--nproc-per-node=2", "sh", "-c", "echo ready; exec sleep 1000"});
  job.await_out("ready", 2);
  job.signal(number);
  const auto result = job.finish();
  CHECK(result.status.signal == 0);
  CHECK(result.code() == 128 + number);
  CHECK_THAT(result.err, Contains("failed first: killed by "));
  CHECK(!result.left_something);
}

TEST_CASE("a stopped worker hears that it is to end") {
  Ddprun job({"sh", "-c", "echo pid $$$$; kill -STOP $$$$; exec sleep 1000"});
  job.await_out("\n");
  job.await_state(job.number_after("pid "), 'T');
  job.signal(SIGTERM);
  const auto result = job.finish();  // before the grace period is over
  CHECK(result.code() == 128 + SIGTERM);
  CHECK_THAT(result.err, !Contains("SIGKILL"));
}

TEST_CASE("Ctrl-Z stops the workers with ddprun, fg continues them") {
  const Ddprun::Arguments arguments{
      "sh",
      "-c",
      "echo pid $$$$; exec " + in_shell(resource("on_signal")) + " exit"};
  SECTION("in a shell with job control") {
    Ddprun job(arguments, {}, "", {}, [] { ::setpgid(0, 0); });
    job.await_out("ready");
    const pid_t worker = job.number_after("pid ");
    for (int round = 0; round < 2; ++round) {
      job.signal(SIGTSTP);
      job.await_state(job.pid(), 'T');
      job.await_state(worker, 'T');
      job.signal(SIGCONT);
      job.await_state(worker, 'S');
    }
    job.signal(SIGTERM);
    const auto result = job.finish();
    CHECK(result.code() == 128 + SIGTERM);
    CHECK(result.lines_of("[0] ").back() == "signal 15");
  }
  SECTION("where nobody could continue them: nothing is stopped") {
    Ddprun job(arguments, {}, "", {}, [] { ::setsid(); });
    job.await_out("ready");
    job.signal(SIGTSTP);
    job.signal(SIGTERM);
    CHECK(job.finish().code() == 128 + SIGTERM);
  }
}
