#include <csignal>

#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;

TEST_CASE("a final exit code is the job's, without a restart") {
  const auto result = run_ddprun({"--max-restarts=3",
                                  "--final-codes=93",
                                  "sh",
                                  "-c",
                                  "echo attempt; exit 93"});
  CHECK(result.code() == 93);
  CHECK(result.out == "[0] attempt\n");
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
