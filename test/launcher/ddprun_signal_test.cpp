// What ddprun does with signals: that it gets, and that its workers get.
#include <unistd.h>

#include <csignal>

#include "test/launcher/child_setup.h"
#include "test/launcher/run_ddprun.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher::test;
using ddp::test::TemporaryFolder;

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
                      "trap '' CHLD; exec " + ddprun_path() + " sh -c '" +
                          command + "'"})
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

TEST_CASE("a log that becomes too large does not end ddprun") {
  const TemporaryFolder folder;
  const auto result =
      run_ddprun({"--log-dir=" + folder.path(),
                  "--tee=3",
                  "sh",
                  "-c",
                  "for i in $(seq 1000); do echo 0123456789; done; echo done"},
                 {},
                 "",
                 {},
                 [] { limit(RLIMIT_FSIZE, 1024); });
  CHECK(result.code() == 1);
  REQUIRE(!result.lines_of("[0] ").empty());
  CHECK(result.lines_of("[0] ").back() == "done");
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
  Ddprun job({"sh", "-c", "echo pid $$; kill -STOP $$; exec sleep 1000"});
  job.await_out("\n");
  job.await_state(job.number_after("pid "), 'T');
  job.signal(SIGTERM);
  const auto result = job.finish();  // within less than the grace period
  CHECK(result.code() == 128 + SIGTERM);
  CHECK_THAT(result.err, !Contains("SIGKILL"));
}
