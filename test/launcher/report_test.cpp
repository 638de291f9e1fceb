#include "launcher/job/report/report.h"

#include <csignal>

#include "launcher/machine/execution.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;

namespace {

WorkerExit exit_of(int rank, ExitStatus status, int asked_by = 0) {
  WorkerExit exit;
  exit.rank = rank;
  exit.local_rank = rank % 4;
  exit.pid = 1000 + rank;
  exit.status = status;
  exit.asked_by = asked_by;
  exit.after = std::chrono::milliseconds(12345);
  return exit;
}

AttemptResult result_of(std::vector<WorkerExit> exits, Cause cause = {}) {
  AttemptResult result;
  result.host = "node7";
  result.workers.exits = std::move(exits);
  result.cause = std::move(cause);
  return result;
}

/// Returns this worker's end as the cause.
Cause failure_of(const WorkerExit& exit) {
  return WorkerExited{exit.local_rank, exit.status};
}

}  // namespace

TEST_CASE("all is well: nothing to say") {
  const auto report = make_report(result_of({exit_of(1, {}), exit_of(0, {})}));
  CHECK(report.text.empty());
  CHECK(report.exit_code == 0);
}

TEST_CASE("the first that failed by itself is the cause") {
  auto result = result_of({exit_of(0, {}),
                           exit_of(5, {.code = 3}),
                           exit_of(4, {.code = 1}),
                           exit_of(6, {.signal = SIGTERM}, SIGTERM),
                           exit_of(7, {.signal = SIGKILL}, SIGTERM)},
                          failure_of(exit_of(5, {.code = 3})));
  result.workers.exits[1].last_lines = {"Traceback:", "  ValueError"};
  result.max_restarts = 2;
  const auto report = make_report(result);
  CHECK(report.exit_code == 3);
  CHECK(report.text == R"(ddprun: rank 5 failed first: exit code 3
  host node7, local rank 1, pid 1005, 12.3 s after its start, attempt 1 of 3
  its last lines on stderr:
    | Traceback:
    |   ValueError
  the other workers:
    rank 0 (pid 1000): exit code 0
    rank 4 (pid 1004): exit code 1, after the first failure
    rank 6 (pid 1006): SIGTERM, stopped by ddprun
    rank 7 (pid 1007): SIGKILL, stopped by ddprun (SIGTERM)
)");
}

TEST_CASE("what ddprun stopped is never the cause") {
  const auto report =
      make_report(result_of({exit_of(0, {.signal = SIGTERM}, SIGTERM),
                             exit_of(1, {.signal = SIGSEGV})},
                            failure_of(exit_of(1, {.signal = SIGSEGV}))));
  CHECK_THAT(report.text, Contains("rank 1 failed first: killed by SIGSEGV"));
  CHECK_THAT(report.text, Contains("it wrote nothing to stderr"));
  CHECK(report.exit_code == 128 + SIGSEGV);
}

TEST_CASE("an error file is part of the report") {
  auto result =
      result_of({exit_of(0, {.code = 1})}, failure_of(exit_of(0, {.code = 1})));
  result.workers.exits[0].error =
      R"({"message":{"message":"ValueError: no\nsecond line"}})";
  CHECK_THAT(make_report(result).text,
             Contains("  its error file:\n    | ValueError: no\n    | second "
                      "line\n"));
}

TEST_CASE("an error file that torch did not write is shown as it begins") {
  auto result =
      result_of({exit_of(0, {.code = 1})}, failure_of(exit_of(0, {.code = 1})));
  result.workers.exits[0].error = "no\nJSON" + std::string(9000, 'x');
  const std::string text = make_report(result).text;
  CHECK_THAT(text,
             Contains("  its error file has no message: expected {\"message\": "
                      "...}, but got\n    | no\n    | JSONx"));
  CHECK(text.size() < 600);
}

TEST_CASE("workers without a GPU of their own are mentioned") {
  auto result =
      result_of({exit_of(0, {.code = 1})}, failure_of(exit_of(0, {.code = 1})));
  result.worker_count = 4;
  for (const int gpus : {0, 4, 8}) {
    result.gpu_count = gpus;
    CHECK_THAT(make_report(result).text, !Contains("GPU"));
  }
  result.gpu_count = 1;
  CHECK_THAT(make_report(result).text, Contains("  4 workers saw 1 GPU, so "));
  result.cause = SignalReceived{SIGTERM};
  CHECK_THAT(make_report(result).text, !Contains("GPU"));
}

TEST_CASE("a long error file is shortened") {
  auto result =
      result_of({exit_of(0, {.code = 1})}, failure_of(exit_of(0, {.code = 1})));
  result.workers.exits[0].error =
      R"({"message":"begin )" + std::string(9000, 'x') + R"( end"})";
  const std::string text = make_report(result).text;
  CHECK(text.size() < 5000);
  CHECK_THAT(
      text,
      Contains("| begin x") && Contains("bytes ...] x") && Contains("x end\n"));
}

TEST_CASE("many workers that end alike are one line") {
  std::vector<WorkerExit> exits{exit_of(4, {.code = 3})};
  for (const int rank : {6, 0, 2, 1, 3}) {
    exits.push_back(exit_of(rank, {.signal = SIGTERM}, SIGTERM));
  }
  exits.push_back(exit_of(5, {.code = 9}));
  const Cause cause = failure_of(exits.front());
  CHECK_THAT(make_report(result_of(exits, cause)).text,
             Contains("  the other workers:\n"
                      "    ranks 0-3, 6: SIGTERM, stopped by ddprun\n"
                      "    rank 5 (pid 1005): exit code 9, after the first "
                      "failure\n"));
}

TEST_CASE("a SIGKILL from elsewhere has a hint") {
  const auto report =
      make_report(result_of({exit_of(0, {.signal = SIGKILL})},
                            failure_of(exit_of(0, {.signal = SIGKILL}))));
  CHECK_THAT(report.text, Contains("memory is full"));
  CHECK(report.exit_code == 137);
}

TEST_CASE("a signal to ddprun is the cause when it came first") {
  auto result = result_of({exit_of(0, {.signal = SIGINT}, SIGINT),
                           exit_of(1, {.signal = SIGKILL}, SIGKILL),
                           exit_of(2, {.code = 0}, SIGINT)});
  result.cause = SignalReceived{SIGINT};
  const auto report = make_report(result);
  CHECK(report.exit_code == 130);
  CHECK(report.text == R"(ddprun: stopped by SIGINT
  the workers:
    rank 0 (pid 1000): SIGINT, stopped by ddprun
    rank 1 (pid 1001): SIGKILL, stopped by ddprun
    rank 2 (pid 1002): exit code 0, stopped by ddprun (SIGINT)
)");
}

TEST_CASE("a hang: who, since when, and what each rank has said last") {
  using std::chrono::milliseconds;
  Hang hang;
  hang.timeout = milliseconds(10'000);
  hang.workers = {{.rank = 5,
                   .local_rank = 1,
                   .pid = 77,
                   .quiet = milliseconds(12'340),
                   .limit = milliseconds(10'000),
                   .has_reported = true,
                   .last_report = "step 3"}};
  hang.others = {{4, true, "in collective 9"},
                 {6, false, ""},
                 {7, true, "in collective 9"}};
  const auto report_of = [&hang] {
    WorkerExit hung;
    hung.rank = 5;
    hung.local_rank = 1;
    hung.status = {.signal = SIGKILL};
    hung.last_lines = {"loading"};
    return make_report(result_of({hung}, WorkersHang{hang}));
  };
  const Report report = report_of();
  CHECK(report.exit_code == 128 + SIGKILL);
  CHECK_THAT(report.text,
             Contains("ddprun: rank 5 hangs: no progress for 12.3 s "
                      "(--hang-timeout is 10.0 s)\n") &&
                 Contains("  rank 5 (local rank 1, pid 77): last report "
                          "\"step 3\"\n  its last lines on stderr:\n    | "
                          "loading\n") &&
                 Contains("  ranks 4, 7: last report \"in collective 9\"\n") &&
                 Contains("  rank 6: no report yet\n") &&
                 !Contains("stopped by ddprun"));
  SECTION("several, with a limit of their own, stopped") {
    hang.workers.front().limit = milliseconds(60'000);
    hang.workers.front().is_stopped = true;
    hang.workers.push_back({.rank = 6, .local_rank = 2, .pid = 78});
    CHECK_THAT(
        report_of().text,
        Contains("ddprun: ranks 5-6 hang: no progress for 12.3 s (it "
                 "may take 60.0 s, --hang-timeout is 10.0 s)\n") &&
            Contains("it is stopped by a signal, SIGCONT would continue "
                     "it\n") &&
            Contains("  rank 6 (local rank 2, pid 78): no report yet\n"));
  }
}

TEST_CASE("a worker that cannot be killed is named") {
  auto result =
      result_of({exit_of(0, {.code = 9})}, failure_of(exit_of(0, {.code = 9})));
  result.workers.survivors = {{1, 4242}, {2, 4343, true}};
  const auto report = make_report(result);
  CHECK(report.exit_code == 9);
  CHECK_THAT(
      report.text,
      Contains("rank 1 (pid 4242): still there after SIGKILL") &&
          Contains("rank 2 (pid 4343): still there; it is another user's"));
}

TEST_CASE("what ends a job beside its workers is one line") {
  const auto text_of = [](const Cause& cause) {
    return make_report(result_of({}, cause)).text;
  };
  const auto code_of = [](const Cause& cause) {
    return make_report(result_of({}, cause)).exit_code;
  };
  const StartFailed failed{127, "program x does not exist"};
  CHECK(text_of(failed) == "ddprun: program x does not exist\n");
  CHECK(code_of(failed) == 127);
  const RendezvousLost lost{"port 7 is in use"};
  CHECK(text_of(lost) == "ddprun: port 7 is in use\n");
  CHECK(code_of(lost) == 1);
  const WorldBroken broken{WorldBroken::Change::vanished, "node3"};
  CHECK_THAT(text_of(broken),
             Catch::StartsWith("ddprun: host node3 vanished\n  next: "));
  CHECK(code_of(broken) == 1);
  CHECK_THAT(
      text_of(WorldBroken{
          WorldBroken::Change::vanished, "node3", "silent for 15 s"}),
      Catch::StartsWith("ddprun: host node3 vanished: silent for 15 s\n"));
  CHECK(text_of(JobClosed{0}).empty());
  CHECK(code_of(JobClosed{0}) == 0);
  CHECK(text_of(JobClosed{9}) == "ddprun: the job failed on another host\n");
  CHECK(code_of(JobClosed{9}) == 9);
  CHECK(text_of(JobClosed{9, "rank 3 failed"}) == "ddprun: rank 3 failed\n");
}

TEST_CASE("a host whose failure followed another's reports both") {
  const JobClosed closed{9, "rank 1 on host node6 failed: exit code 9"};
  const Report report =
      make_report(result_of({exit_of(5, {.code = 3}), exit_of(4, {})}, closed));
  CHECK(report.exit_code == 9);
  CHECK(report.text ==
        "ddprun: rank 1 on host node6 failed: exit code 9\n"
        "  the other workers:\n"
        "    rank 5 (pid 1005): exit code 3, after the first failure\n"
        "    rank 4 (pid 1004): exit code 0\n");
  // Workers that were only stopped are not listed.
  CHECK(
      make_report(result_of({exit_of(5, {.signal = SIGTERM}, SIGTERM)}, closed))
          .text == "ddprun: rank 1 on host node6 failed: exit code 9\n");
}

TEST_CASE("a signal to all processes of a job is no worker's failure") {
  const Report report =
      make_report(result_of({exit_of(4, {.signal = SIGTERM}),
                             exit_of(5, {.signal = SIGTERM}, SIGTERM)},
                            SignalReceived{SIGTERM}));
  CHECK_THAT(report.text,
             Contains("rank 4 (pid 1004): SIGTERM, not by ddprun\n") &&
                 Contains("rank 5 (pid 1005): SIGTERM, stopped by ddprun\n"));
}

TEST_CASE("why a program cannot be executed, and what to do about it") {
  struct Row {
    int error;
    int code;
    std::string advice;
  };
  const Row rows[] = {{ENOENT, 127, "interpreter"},
                      {ENOEXEC, 126, "built for this machine"},
                      {EACCES, 126, "noexec"},
                      {E2BIG, 126, "too long together"},
                      {ETXTBSY, 126, "writing it"},
                      {ENOMEM, 126, "fewer workers"},
                      {EIO, 126, "check the file"}};
  for (const Row& row : rows) {
    CAPTURE(row.error);
    const LaunchError error = exec_failure("/bin/train", row.error);
    CHECK(error.exit_code() == row.code);
    CHECK_THAT(error.what(),
               Contains("program /bin/train cannot be executed (" +
                        std::generic_category().message(row.error) + "); ") &&
                   Contains(row.advice));
  }
}

TEST_CASE("a report ends with the next step, if one fits") {
  // A line on stderr, and a part of the step.
  using Row = std::pair<const char*, const char*>;
  const auto row = GENERATE(values<Row>(
      {{"RuntimeError: CUDA out of memory. Tried to allocate", "smaller batch"},
       {"CUDA error: no kernel image is available for execution", "--doctor"},
       {"CUDA driver version is insufficient for CUDA runtime", "--doctor"},
       {"no CUDA-capable device is detected", "--doctor"},
       {"CUDA error: invalid device ordinal", "--doctor"},
       {"Watchdog caught collective operation timeout: WorkNCCL",
        "--hang-timeout"},
       {"NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error",
        "NCCL_DEBUG=INFO"},
       {"bind: Address already in use", "--master-port"},
       {"connect: Connection refused", "on each host"},
       {"The client socket has timed out after 60000ms", "on each host"},
       {"connect: No route to host", "on each host"},
       {"connect: Network is unreachable", "on each host"},
       {"node1: Name or service not known", "on each host"},
       {"Temporary failure in name resolution", "on each host"},
       {"Unable to find address for: eth9", "on each host"},
       {"train: error while loading shared libraries: libtorch.so", "ldd"},
       {"open: Too many open files", "ulimit -n"},
       {"write: No space left on device", "df"},
       {"fork: Cannot allocate memory", "fewer workers"},
       {"what(): std::bad_alloc", "fewer workers"}}));
  auto result = result_of(
      {exit_of(0, {.code = 1}), exit_of(1, {.signal = SIGTERM}, SIGTERM)},
      failure_of(exit_of(0, {.code = 1})));
  const auto last_line = [&result] {
    const std::string text = make_report(result).text;
    return text.substr(text.rfind('\n', text.size() - 2) + 1);
  };
  result.workers.exits[0].last_lines = {row.first, "a later line"};
  CHECK_THAT(last_line(),
             Catch::StartsWith("  next: ") && Contains(row.second));
  result.workers.exits[0].last_lines = {"ValueError: 3"};
  CHECK_THAT(last_line(), !Contains("next: "));
  result.workers.exits[0].error =
      R"({"message": {"message": ")" + std::string(row.first) + "\"}}";
  CHECK_THAT(last_line(), Contains("  next: ") && Contains(row.second));
  // The output of another worker is no cause.
  result.workers.exits[0].error.clear();
  result.workers.exits[1].last_lines = {row.first};
  CHECK_THAT(last_line(), !Contains("next: "));
}

TEST_CASE("the next step after a failure without words") {
  const auto text_of_end = [](ExitStatus status, int64_t oom_kills) {
    auto result =
        result_of({exit_of(0, status)}, failure_of(exit_of(0, status)));
    result.workers.oom_kills = oom_kills;
    return make_report(result).text;
  };
  CHECK_THAT(text_of_end({.signal = SIGSEGV}, 0), !Contains("next: "));
  CHECK_THAT(text_of_end({.signal = SIGKILL}, 1),
             Contains("next: fewer workers"));
  CHECK_THAT(text_of_end({.signal = SIGKILL}, 0), !Contains("next: "));
  CHECK_THAT(text_of_end({.code = 3}, 0), !Contains("next: "));
  const auto text_of_cause = [](Cause cause) {
    return make_report(result_of({}, std::move(cause))).text;
  };
  CHECK_THAT(text_of_cause(RendezvousLost{"node0: Name or service not known"}),
             !Contains("next: "));
  CHECK_THAT(text_of_cause(WorldBroken{WorldBroken::Change::vanished, "node1"}),
             Contains("next: ddprun --doctor on each host"));
  CHECK_THAT(text_of_cause(WorldBroken{WorldBroken::Change::left, "node1"}),
             !Contains("next: "));
}
