// What becomes of processes: ddprun's own, and those that workers start.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "launcher/fd.h"
#include "test/launcher/child_setup.h"
#include "test/launcher/run_ddprun.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher::test;
using ddp::test::TemporaryFolder;
using Lines = std::vector<std::string>;
using namespace std::chrono_literals;

TEST_CASE("what a finished worker left runs on, and is asked at the end") {
  const std::string where = GENERATE("group", "session");
  Ddprun job({"--nproc-per-node=2",
              "sh",
              "-c",
              "if [ $RANK = 0 ]; then read line; exit 0; fi; exec " +
                  resource("leave_saver") + " " + where});
  job.await_out("alone");
  job.close_input();
  const auto result = job.finish();
  CHECK(result.code() == 0);
  CHECK(result.err.empty());
  CHECK(result.lines_of("[1] ") == Lines{"alone", "saved"});
  CHECK(!result.left_something);
}

TEST_CASE("a worker that forks and dies is restarted, 50 times of 50") {
  const auto result =
      run_ddprun({"--max-restarts=50",
                  "sh",
                  "-c",
                  "[ $TORCHELASTIC_RESTART_COUNT != 50 ] || exit 0; "
                  "true & exec timeout 0.02 sleep 9"});
  CHECK(result.code() == 0);
  CHECK_THAT(result.err, Contains("rank 0 failed first: exit code 124"));
  CHECK_THAT(result.err, Contains("restart 50 of 50"));
  CHECK(!result.left_something);
}

TEST_CASE("256 workers with their logs at a limit of 1,024 open files") {
  rlimit limits{};
  ::getrlimit(RLIMIT_NOFILE, &limits);
  if (limits.rlim_max < 2048) {
    WARN("skipped: no more files may be opened on this machine");
    return;
  }
  const TemporaryFolder folder;
  const auto result = run_ddprun({"--nproc-per-node=256",
                                  "--tee=3",
                                  "--log-dir=" + folder.path(),
                                  "sh",
                                  "-c",
                                  "ulimit -n; echo x >&2"},
                                 {},
                                 "",
                                 Bound(60s),
                                 [] { limit(RLIMIT_NOFILE, 1024); });
  CHECK(result.code() == 0);
  for (int rank = 0; rank < 256; ++rank) {
    CHECK(result.lines_of("[" + std::to_string(rank) + "] ") == Lines{"1024"});
  }
}

TEST_CASE("a sandbox without pidfds: SIGCHLD does") {
  const auto in_child = [] {
    deny_system_calls({SYS_pidfd_open}, EPERM);
    deny_system_calls({SYS_clone3}, ENOSYS);
  };
  SECTION("success, after a restart") {
    const auto result = run_ddprun(
        {"--nproc-per-node=3", "--max-restarts=1", resource("fail_until"), "1"},
        {},
        "",
        {},
        in_child);
    CHECK(result.code() == 0);
    CHECK(!result.left_something);
  }
  SECTION("failure, with what is left behind") {
    const auto result = run_ddprun({"--nproc-per-node=3",
                                    "--grace-period=0.1",
                                    resource("spawn_grandchild"),
                                    "daemon",
                                    "5"},
                                   {},
                                   "",
                                   {},
                                   in_child);
    CHECK(result.code() == 5);
    CHECK_THAT(result.err, Contains("failed first: exit code 5"));
    CHECK(!result.left_something);
  }
  SECTION("a signal") {
    Ddprun job({"--nproc-per-node=2", resource("on_signal"), "exit"},
               {},
               "",
               {},
               in_child);
    job.await_out("ready", 2);
    job.signal(SIGTERM);
    CHECK(job.finish().code() == 128 + SIGTERM);
  }
}
