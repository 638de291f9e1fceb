#include <csignal>

#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;

TEST_CASE("a job that waits before its restarts succeeds in the end") {
  const auto result = run_ddprun({"--nproc-per-node=2",
                                  "--max-restarts=2",
                                  "--restart-delay=0.01",
                                  resource("fail_until"),
                                  "2"});
  CHECK(result.code() == 0);
  CHECK_THAT(result.err,
             Contains("waiting 0.01 s before the next start") &&
                 Contains("waiting 0.02 s before the next start"));
}

TEST_CASE("a final exit code is the job's, without a restart") {
  const auto result = run_ddprun({"--max-restarts=3",
                                  "--final-codes=93",
                                  "sh",
                                  "-c",
                                  "echo attempt; exit 93"});
  CHECK(result.code() == 93);
  CHECK(result.out == "[0] attempt\n");
}

TEST_CASE("a job whose time is up ends with 124, and nothing stays") {
  const auto result =
      run_ddprun({"--nproc-per-node=2", "--time-limit=0.2", "sleep", "1000"});
  CHECK(result.code() == 124);
  CHECK_THAT(result.err, Contains("stopped, as --time-limit is 0.2 s"));
  CHECK(!result.left_something);
}

TEST_CASE("workers that all end with 0 on SIGTERM: success, if asked for") {
  const bool is_asked_for = GENERATE(true, false);
  Ddprun::Arguments arguments{
      "--nproc-per-node=2", resource("on_signal"), "exit"};
  if (is_asked_for) {
    arguments.insert(arguments.begin(), "--clean-stop");
  }
  Ddprun job(arguments);
  job.await_out("ready", 2);
  job.signal(SIGTERM);
  CHECK(job.finish().code() == (is_asked_for ? 0 : 128 + SIGTERM));
}

TEST_CASE("what an attempt leaves goes when the next one has started") {
  // The attempt before may be there for as long as workers start.
  const auto result = run_ddprun(
      {"--max-restarts=4",
       "sh",
       "-c",
       "[ $TORCHELASTIC_RESTART_COUNT = 4 ] || exit 1; "
       "attempts=${TORCHELASTIC_ERROR_FILE%/attempt_*}; "
       // If a job has a cgroup, each attempt has a cgroup in it.
       "own=$(sed -n s/^0:://p /proc/self/cgroup); "
       "case $own in */ddprun.*/attempt_*) cgroup=${own%/attempt_*};; "
       "*) cgroup=/none;; esac; "
       "left() { ls -d $attempts/attempt_* /sys/fs/cgroup$cgroup/attempt_* "
       "/sys/fs/cgroup/unified$cgroup/attempt_* 2>/dev/null; }; "
       "tries=0; while left | grep -q 'attempt_3$' && [ $tries -lt 600 ]; do "
       "sleep 0.1; tries=$((tries + 1)); done; "
       "left | sed 's,.*/,,' | sort -u"});
  CHECK(result.code() == 0);
  CHECK(result.lines_of("[0] ") == std::vector<std::string>{"attempt_4"});
}
