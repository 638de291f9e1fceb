#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "launcher/machine/process_state.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher::test;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;

TEST_CASE("a worker that hangs is named, and the group starts again") {
  const std::string how = GENERATE("spin", "sleep", "stop", "deadlock");
  CAPTURE(how);
  Ddprun job({"--nproc-per-node=3",
              "--hang-timeout=1",
              "--max-restarts=1",
              resource("hang"),
              how});
  const auto result = job.finish();
  CHECK(result.code() == 0);
  CHECK(!result.left_something);
  CHECK(!job.left_files());
  CHECK_THAT(result.err,
             Contains("ddprun: rank 1 hangs: no progress for ") &&
                 Contains("--hang-timeout is 1.0 s)\n") &&
                 Contains("  rank 1 (local rank 1, pid ") &&
                 Contains("last report \"step 3, ") &&
                 Contains("  ranks 0, 2: last report \"step 3, in collective "
                          "4\"\n") &&
                 Contains("starting all workers again: restart 1 of 1"));
  const bool says_stopped =
      result.err.find("is stopped by a signal") != std::string::npos;
  CHECK(says_stopped == (how == "stop"));
}

TEST_CASE("all ranks of a collective that does not end are named") {
  const auto result = run_ddprun({"--nproc-per-node=3",
                                  "--hang-timeout=1",
                                  resource("hang"),
                                  "collective"});
  CHECK(result.code() == 128 + SIGKILL);
  CHECK_THAT(result.err, Contains("ddprun: ranks 0-2 hang: no progress"));
  CHECK(!result.left_something);
}

TEST_CASE("an announced evaluation and a long first step are no hangs") {
  const auto result = run_ddprun({"--nproc-per-node=3",
                                  "--hang-timeout=1",
                                  resource("hang"),
                                  GENERATE("evaluate", "first"),
                                  "3"});
  CHECK(result.code() == 0);
  CHECK(result.err == "");
  CHECK(!result.left_something);
}

TEST_CASE("a save that takes longer than it has asked for hangs") {
  const auto result = run_ddprun({"--nproc-per-node=2",
                                  "--hang-timeout=0.3",
                                  "--max-restarts=1",
                                  resource("hang"),
                                  "save"});
  CHECK(result.code() == 0);
  CHECK_THAT(result.err,
             Contains("ddprun: rank 1 hangs: no progress for ") &&
                 Contains("(it may take 1.0 s, --hang-timeout is 0.3 s)\n") &&
                 Contains("last report \"saving, ") &&
                 Contains("restart 1 of 1"));
  CHECK(!result.left_something);
}

TEST_CASE("a program that reports nothing is not judged") {
  const auto result = run_ddprun({"--hang-timeout=0.1", "sleep", "1"});
  CHECK(result.code() == 0);
  CHECK(result.err == "");
}

TEST_CASE("one line of a shell reports; the JSON says what hung") {
  const TemporaryFolder folder;
  const auto result = run_ddprun(
      {"--nproc-per-node=2",
       "--hang-timeout=1",
       "--report-json=" + (folder / "report.json"),
       "sh",
       "-c",
       "echo start > $DDPRUN_JOB_DIR/progress_$RANK; sleep 0.2; n=0; while :; "
       "do [ $RANK$n = 13 ] && exec sleep 60; n=$((n + 1)); "
       "echo step $n > $DDPRUN_JOB_DIR/progress_$RANK; sleep 0.05; done"});
  CHECK(result.code() == 128 + SIGKILL);
  const auto report = nlohmann::json::parse(read_file(folder / "report.json"));
  const auto& attempt = report.at("attempts").at(0);
  const auto& cause = attempt.at("cause");
  CHECK(cause.at("kind") == "hang");
  CHECK(cause.at("rank") == 1);
  CHECK(cause.at("timeout_seconds") == 1.0);
  REQUIRE(cause.at("hung").size() == 1);
  CHECK(cause.at("hung").at(0).at("last_report") == "step 3");
  CHECK(cause.at("hung").at(0).at("quiet_seconds") > 1.0);
  CHECK(cause.at("others").at(0).at("rank") == 0);
  for (const auto& worker : attempt.at("workers")) {
    CHECK(worker.at("part") == (worker.at("rank") == 1 ? "hung" : "stopped"));
  }
}

TEST_CASE("the files of a job in a job are not in the outer --log-dir") {
  const TemporaryFolder logs;
  const TemporaryFolder local;
  const auto result = run_ddprun({"--log-dir=" + logs.path(),
                                  ddprun_path(),
                                  "--hang-timeout=60",
                                  "--output=inherit",
                                  "sh",
                                  "-c",
                                  "ls $DDPRUN_JOB_DIR/progress_$RANK"},
                                 {{"XDG_RUNTIME_DIR", local.path()}});
  CHECK(result.code() == 0);
  CHECK_THAT(result.out, Contains("[0] " + local.path() + "/ddprun_"));
  CHECK(local.size() == 0);
}

TEST_CASE(
    "a worker that reports does not hang if the job's files are removed") {
  // As by logind, which empties XDG_RUNTIME_DIR when its user logs out.
  const auto result =
      run_ddprun({"--hang-timeout=1",
                  "sh",
                  "-c",
                  "file=$DDPRUN_JOB_DIR/progress_$RANK; exec 3>>$file; "
                  "for step in 1 2 3; do echo $step > $file; sleep 0.2; done; "
                  "rm -r $DDPRUN_JOB_DIR; "
                  "for step in $(seq 30); do echo $step >&3; sleep 0.1; done"});
  CHECK(result.code() == 0);
}

TEST_CASE("workers of a job in a job do not report to the outer one's files") {
  const auto result = run_ddprun({"--hang-timeout=60",
                                  "--on-preempt=USR1:60",
                                  ddprun_path(),
                                  "--nproc-per-node=2",
                                  "--output=inherit",
                                  "sh",
                                  "-c",
                                  "echo \"[$DDPRUN_JOB_DIR]\""});
  CHECK(result.code() == 0);
  CHECK(result.out == "[0] []\n[0] []\n");
}

TEST_CASE("Ctrl-Z stops the workers, which do not hang then") {
  // Runs in a process group of its own, as a shell with job control starts it.
  Ddprun job({"--hang-timeout=1", resource("hang"), "never"}, {}, "", {}, [] {
    ::setpgid(0, 0);
  });
  job.await_out("pid ");
  const pid_t worker = job.number_after("pid ");
  job.signal(SIGTSTP);
  job.await_state(worker, 'T');
  ::usleep(2'500'000);  // longer than the limit
  job.signal(SIGCONT);
  const auto result = job.finish();
  CHECK(result.code() == 0);
}

TEST_CASE("the state of a process in the text of its stat") {
  CHECK(launcher::state_in_stat("12 (a) R) T 1 2") == 'T');
  CHECK(launcher::state_in_stat("12 (cat) R 1 2") == 'R');
  CHECK(launcher::state_in_stat("12 (cat) ") == '\0');
  CHECK(launcher::state_in_stat("") == '\0');
}
