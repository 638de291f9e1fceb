#include "launcher/job/report/report_json.h"

#include <sys/stat.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "launcher/base/error.h"
#include "launcher/job/report_files.h"
#include "launcher/machine/cgroup.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using ddp::test::write_file;
using nlohmann::json;
using namespace launcher;

namespace {

WorkerExit ending(int rank, ExitStatus status, int asked_by = 0) {
  WorkerExit exit;
  exit.rank = rank;
  exit.local_rank = rank - 4;
  exit.pid = 1000 + rank;
  exit.status = status;
  exit.asked_by = asked_by;
  exit.after = std::chrono::milliseconds(1250);
  return exit;
}

/// Rank 5 failed, 6 ended after it, 7 was stopped, and 4 had succeeded before.
AttemptResult attempt_with_a_failure() {
  AttemptResult result;
  result.workers.exits = {ending(4, {}),
                          ending(5, {.code = 3}),
                          ending(6, {.signal = SIGABRT}),
                          ending(7, {.signal = SIGKILL}, SIGTERM)};
  result.workers.exits[1].last_lines = {"Traceback:", "no \xff data"};
  result.workers.exits[1].error = R"({"message":{"message":"MyError: x"}})";
  result.workers.survivors = {{8, 4242}};
  result.workers.oom_kills = 2;
  result.workers.oom_cgroup = "/sys/fs/cgroup/job";
  result.logs = "/logs/a_1/attempt_1";
  result.restarts = 1;
  result.cause = WorkerExited{1, {.code = 3}};
  return result;
}

}  // namespace

TEST_CASE("a failed attempt as JSON: the cause and every worker's part") {
  const json expected = json::parse(R"({
    "number": 2, "logs": "/logs/a_1/attempt_1", "exit_code": 3,
    "cause": {"kind": "worker_failed", "rank": 5, "is_final": false},
    "out_of_memory_kills": 2, "out_of_memory_cgroup": "/sys/fs/cgroup/job",
    "workers": [
      {"rank": 4, "local_rank": 0, "pid": 1004, "after_seconds": 1.25,
       "exit_code": 0, "signal": null, "part": "succeeded",
       "stopped_by": null},
      {"rank": 5, "local_rank": 1, "pid": 1005, "after_seconds": 1.25,
       "exit_code": 3, "signal": null, "part": "first_failure",
       "stopped_by": null, "stderr": ["Traceback:", "no \ufffd data"],
       "error": "MyError: x"},
      {"rank": 6, "local_rank": 2, "pid": 1006, "after_seconds": 1.25,
       "exit_code": null, "signal": "SIGABRT", "part": "followed",
       "stopped_by": null, "stderr": [], "error": null},
      {"rank": 7, "local_rank": 3, "pid": 1007, "after_seconds": 1.25,
       "exit_code": null, "signal": "SIGKILL", "part": "stopped",
       "stopped_by": "SIGTERM"}],
    "survivors": [{"rank": 8, "pid": 4242}]})");
  CHECK(json::parse(make_report(attempt_with_a_failure()).json) == expected);
}

TEST_CASE("the first failure of several hosts as JSON") {
  AttemptResult result = attempt_with_a_failure();
  const auto first_of = [&result] {
    return json::parse(make_report(result).json)["cause"]["first"];
  };
  result.first = FirstFailure{5, "node7"};
  CHECK(first_of() == json::parse(R"({"rank": 5, "host": "node7"})"));
}

TEST_CASE("other causes as JSON") {
  const auto cause_of = [](const Cause& cause) {
    AttemptResult result;
    result.cause = cause;
    return json::parse(make_report(result).json)["cause"];
  };
  const auto object = [](const std::string& text) { return json::parse(text); };
  CHECK(cause_of({}).is_null());
  CHECK(cause_of(JobClosed{0}).is_null());
  CHECK(cause_of(JobClosed{9}) == object(R"({"kind":"other_host_failed"})"));
  CHECK(cause_of(StartFailed{127, "no x"}) ==
        object(R"({"kind":"start_failed","text":"no x"})"));
  CHECK(cause_of(SignalReceived{SIGINT}) ==
        object(R"({"kind":"signal","signal":"SIGINT"})"));
  CHECK(cause_of(RendezvousLost{"gone"}) ==
        object(R"({"kind":"rendezvous_lost","text":"gone"})"));
  Hang hang;
  hang.timeout = std::chrono::milliseconds(1500);
  hang.workers = {
      {.rank = 5, .local_rank = 1, .pid = 77, .has_reported = true}};
  hang.others = {{4, false, ""}};
  CHECK(cause_of(WorkersHang{hang}) == object(R"({
    "kind": "hang", "rank": 5, "timeout_seconds": 1.5,
    "hung": [{"rank": 5, "local_rank": 1, "pid": 77, "quiet_seconds": 0,
              "limit_seconds": 0, "last_report": "", "is_stopped": false}],
    "others": [{"rank": 4, "last_report": null}]})"));
  using Change = WorldBroken::Change;
  for (const auto& [change, name] :
       {std::pair(Change::joined, "host_joined"),
        std::pair(Change::left, "host_left"),
        std::pair(Change::vanished, "host_vanished"),
        std::pair(Change::failed, "host_failed")}) {
    const json cause = cause_of(WorldBroken{change, "node3"});
    CHECK(cause["kind"] == name);
    CHECK(cause["host"] == "node3");
  }
}

TEST_CASE("the report says where files are, and that memory was full") {
  AttemptResult result = attempt_with_a_failure();
  result.workers.exits[2].last_lines = {"1", "2", "3", "4"};
  const std::string text = make_report(result).text;
  CHECK_THAT(text, Contains("\n  its files are in /logs/a_1/attempt_1/1\n"));
  CHECK_THAT(text,
             Contains("\n  memory was full: the kernel has killed 2 processes "
                      "in this time in cgroup /sys/fs/cgroup/job\n"));
  CHECK_THAT(text,
             Contains("    rank 6 (pid 1006): SIGABRT, after the first "
                      "failure\n        | 2\n        | 3\n        | 4\n"));
  // The number of kills makes the guess about memory superfluous.
  result.workers.exits[1].status = {.signal = SIGKILL};
  result.cause = WorkerExited{1, {.signal = SIGKILL}};
  CHECK_THAT(make_report(result).text, !Contains("often the kernel"));
}

TEST_CASE("the JSON of a job: there from the start, whole at each attempt") {
  const TemporaryFolder folder;
  const std::string file = folder / "report.json";
  const JobFacts facts{"job7", "node7", {"./train", "--lr=\xff"}};
  EventLoop loop;
  DroppedOutput losses;
  ReportFiles files({.error = "", .json = file}, facts, loop, losses);
  json report = json::parse(read_file(file));
  CHECK(report["version"] == 1);
  CHECK(report["run_id"] == "job7");
  CHECK(report["host"] == "node7");
  CHECK(report["program"] == json::parse(R"(["./train", "--lr=\ufffd"])"));
  CHECK(report["state"] == "running");
  CHECK(report["exit_code"].is_null());
  CHECK(report["attempts"].empty());
  AttemptResult result;
  for (int restart = 0; restart < 110; ++restart) {
    result = attempt_with_a_failure();
    result.restarts = restart;
    files.add(make_report(result));
  }
  files.thread().drain();
  report = json::parse(read_file(file));
  CHECK(report["state"] == "running");
  REQUIRE(report["attempts"].size() == 100);
  CHECK(report["attempts"][0]["number"] == 1);
  CHECK(report["attempts"][1]["number"] == 12);
  CHECK(report["attempts"][99]["number"] == 110);
  files.finish();
  files.thread().drain();
  report = json::parse(read_file(file));
  CHECK(report["state"] == "ended");
  CHECK(report["exit_code"] == 3);
  CHECK(folder.size() == 1);
}

TEST_CASE("a place where no JSON can be written is an error at the start") {
  const TemporaryFolder folder;
  const auto start = [](const std::string& file) {
    EventLoop loop;
    DroppedOutput losses;
    ReportFiles({.error = "", .json = file}, {}, loop, losses);
  };
  CHECK_THROWS_WITH(start(folder.path()),
                    Contains("--report-json: " + folder.path() +
                             " cannot be written (File exists); give "));
  CHECK_THROWS_WITH(start(folder / "no/file"),
                    Contains("(No such file or directory)"));
  CHECK_THROWS_AS(start(folder / "no/file"), LaunchError);
}

TEST_CASE("a JSON that can no longer be written is lost output") {
  const TemporaryFolder folder;
  const std::string file = folder / "report.json";
  EventLoop loop;
  DroppedOutput losses;
  ReportFiles files({.error = "", .json = file}, {}, loop, losses);
  REQUIRE(std::remove(file.c_str()) == 0);
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  files.add(Report{.text = "", .exit_code = 0, .error = "", .json = "{}"});
  files.thread().drain();
  CHECK_THAT(losses.summary(), Contains(" bytes of " + file));
  const bool is_mended = GENERATE(true, false);
  if (is_mended) {
    REQUIRE(std::remove(file.c_str()) == 0);
  }
  files.finish();
  files.thread().drain();
  CHECK(losses.empty() == is_mended);
}

TEST_CASE("kills for want of memory, by the text of memory.events") {
  CHECK(oom_kills_of("low 0\nhigh 7\nmax 9\noom 3\noom_kill 2\n"
                     "oom_group_kill 0\n") == 2);
  CHECK(oom_kills_of("oom_kill 0") == 0);
  for (const char* text : {"", "oom 3\n", "oom_kill", "oom_kill x", "x x x"}) {
    CHECK(!oom_kills_of(text));
  }
}

TEST_CASE("kills are counted from the beginning, by the nearest that counts") {
  const TemporaryFolder folder;
  const std::string job = folder / "job";
  const std::string attempt = job + "/attempt_0";
  REQUIRE(::mkdir(job.c_str(), 0700) == 0);
  REQUIRE(::mkdir(attempt.c_str(), 0700) == 0);
  const OutOfMemory none(attempt, "");
  CHECK(none.kills() == 0);
  CHECK(none.cgroup().empty());
  write_file(folder / "memory.events", "oom 1\noom_kill 4\n");
  const OutOfMemory above(attempt, folder / "version_1");
  CHECK(above.cgroup() == folder.path());
  CHECK(above.kills() == 0);
  write_file(attempt + "/memory.events", "oom_kill 0\n");
  const OutOfMemory own(attempt, "");
  CHECK(own.cgroup() == attempt);
  write_file(folder / "memory.events", "oom 1\noom_kill 7\n");
  CHECK(above.kills() == 3);
  CHECK(own.kills() == 0);
  write_file(attempt + "/memory.events", "oom_kill 1\n");
  CHECK(own.kills() == 1);
  std::remove((attempt + "/memory.events").c_str());
  CHECK(own.kills() == 0);
  CHECK(OutOfMemory("", "").kills() == 0);
  CHECK(OutOfMemory("", folder / "version_1").cgroup().empty());
}

TEST_CASE("version 1 counts kills where its memory controller is in use") {
  const TemporaryFolder folder;
  const std::string file = folder / "memory.oom_control";
  write_file(file, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  const OutOfMemory memory(folder / "none/attempt_0", folder.path());
  CHECK(memory.cgroup() == folder.path());
  CHECK(memory.kills() == 0);
  write_file(file, "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  CHECK(memory.kills() == 1);
}
