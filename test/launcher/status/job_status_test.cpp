#include "launcher/job/status/job_status.h"

#include <csignal>

#include "launcher/job/status/status_json.h"
#include "launcher/job/status/status_text.h"
#include "test/launcher/fake_job.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;

namespace {

WorkerState worker_with(int rank, std::optional<ExitStatus> end = {}) {
  WorkerState worker;
  worker.rank = 4 + rank;
  worker.local_rank = rank;
  worker.pid = 1000 + rank;
  worker.end = end;
  return worker;
}

/// Returns the status of the second of two hosts, in its third attempt.
JobStatus some_status() {
  JobStatus status;
  status.job = "night";
  status.host = "node7";
  status.program = "/bin/train";
  status.pid = 70;
  status.supervisor = 71;
  status.phase = "stopping";
  status.uptime = 125'400ms;
  status.attempts = 3;
  status.generation = 5;
  status.restarts = 2;
  status.max_restarts = 3;
  status.host_rank = 1;
  status.host_count = 2;
  status.first_rank = 4;
  status.world_size = 8;
  status.store = "node6:29500";
  status.logs = "/logs/night/attempt_5";
  status.worker_count = 5;
  status.workers = {worker_with(0),
                    worker_with(1, ExitStatus{.code = 3}),
                    worker_with(2, ExitStatus{.signal = SIGSEGV}),
                    worker_with(3),
                    worker_with(4)};
  status.workers[0].progress = {true, "step 12", 2'500ms};
  status.workers[1].progress = {false, "", 90'000ms};
  status.workers[3].is_stopped = true;
  status.workers[4].asked_by = SIGTERM;
  return status;
}

}  // namespace

TEST_CASE("a job's status: what it does at each moment of its life") {
  FakeJob job(2, /*max_restarts=*/1);
  job.job.run_id = "night";
  job.job.options.log_dir = "/logs";
  std::vector<JobStatus> seen;
  const auto look = [&] { seen.push_back(job.job_status()); };
  const int code = job.run({[&] { look(); },
                            [&] { job.exit(1, {.code = 3}); },
                            [&] { look(); },
                            [&] {
                              job.exit(0, {});
                              look();
                              job.exit(1, {});
                            }});
  CHECK(code == 0);
  REQUIRE(seen.size() == 3);
  CHECK(seen[0].job == "night");
  CHECK(seen[0].host == "node7");
  CHECK(seen[0].program == "/bin/train");
  CHECK(seen[0].phase == "running");
  CHECK(seen[0].attempts == 1);
  CHECK(seen[0].generation == 0);
  CHECK(seen[0].restarts == 0);
  CHECK(seen[0].max_restarts == 1);
  CHECK(seen[0].world_size == 2);
  CHECK(seen[0].store == "127.0.0.1:29500");
  CHECK(seen[0].logs == "/run/attempt_0");
  REQUIRE(seen[0].workers.size() == 2);
  CHECK(seen[0].workers[1].pid == 1001);
  CHECK(seen[1].attempts == 2);
  CHECK(seen[1].generation == 1);
  CHECK(seen[1].restarts == 1);
  CHECK(seen[1].logs == "/run/attempt_1");
  CHECK(seen[2].phase == "running");
  CHECK(seen[2].workers.size() == 1);
}

TEST_CASE("a job that has not started: no world, no ranks, the time it waits") {
  FakeJob job(3, /*max_restarts=*/0);
  job.answers_joins = false;
  job.job.options.rendezvous = UncoordinatedConfig{.host_count = 2};
  JobStatus seen;
  job.run({[&] {
    job.elapsed = 5s;
    seen = job.job_status();
    job.post(SignalReceived{15});
  }});
  CHECK(seen.phase == "joining");
  CHECK(seen.uptime == 5s);
  CHECK(seen.attempts == 0);
  CHECK(seen.store.empty());
  CHECK(seen.workers.empty());
  CHECK_THAT(status_text(seen),
             Contains("waits for its hosts to meet; started 5.0 s ago\n") &&
                 Contains("no worker has been started; 3 for this host, of 2"));
}

TEST_CASE("status: whatever a worker has written, the answer has bounds") {
  Job job;
  job.worker_count = 5000;
  job.run_id = std::string(1 << 20, 'i');
  std::vector<WorkerState> workers(5000);
  for (WorkerState& worker : workers) {
    worker.progress = {true, std::string(4096, '\\'), 0ms};
  }
  const World world;
  const std::string logs(4096, 'l');
  const JobStatus status = job_status({.job = job,
                                       .phase = Policy::Phase::running,
                                       .uptime = 0ms,
                                       .attempts = 1,
                                       .world = world,
                                       .logs = logs,
                                       .workers = workers,
                                       .pid = 1,
                                       .supervisor = 2});
  CHECK(status.workers.size() == kMostWorkerStates);
  CHECK(status.worker_count == 5000);
  const std::string json = status_json(status);
  CHECK(json.size() < kMostStatusBytes);
  CHECK(parse_status(json));
  CHECK_THAT(status_text(status), Contains("and 4980 more (--json"));
}

TEST_CASE("status: what is written as JSON is read again") {
  const JobStatus status = some_status();
  const std::string json = status_json(status);
  CHECK(json.back() == '\n');
  CHECK(json.find('\n') == json.size() - 1);
  CHECK_THAT(json,
             Contains("\"state\":\"ended\",\"exit_code\":3,\"signal\":null") &&
                 Contains("\"signal\":\"SIGSEGV\"") &&
                 Contains("\"asked_by\":\"SIGTERM\"") &&
                 Contains("\"progress\":{\"text\":\"step 12\","
                          "\"seconds_ago\":2.5}"));
  const auto again = parse_status(json);
  REQUIRE(again);
  CHECK(status_json(*again) == json);
  CHECK(status_text(*again) == status_text(status));
}

TEST_CASE("status: what is none is refused, whatever it is") {
  const std::string json = status_json(some_status());
  const auto with_world_size = [&](const std::string& number) {
    const std::string name = "\"world_size\":";
    const size_t begin = json.find(name) + name.size();
    return json.substr(0, begin) + number + json.substr(json.find(',', begin));
  };
  REQUIRE(parse_status(with_world_size("7"))->world_size == 7);
  for (const std::string& text : {std::string(),
                                  std::string("[]"),
                                  std::string("{}"),
                                  std::string("{\"job\":7}"),
                                  json.substr(0, json.size() / 2),
                                  with_world_size("1e20"),
                                  with_world_size("4294967296"),
                                  with_world_size("-1"),
                                  with_world_size("\"8\""),
                                  std::string("\xff\xfe\0x", 4),
                                  std::string(100'000, '[')}) {
    CAPTURE(text.substr(0, 40));
    CHECK(!parse_status(text));
  }
}

TEST_CASE("status as text: one line each for the job, its world and its logs") {
  const std::string text = status_text(some_status());
  CHECK_THAT(
      text,
      Contains("job night on node7, process 70, /bin/train: has asked its "
               "workers to end; started 2 min 5 s ago\n") &&
          Contains("   generation 5, 2 of 3 restarts used; host 1 of 2, ranks "
                   "4-8 of 8; rank 0's store is at node6:29500\n") &&
          Contains("   logs are in /logs/night/attempt_5\n") &&
          Contains("   rank  local  pid   state") &&
          Contains("4     0      1000  running                  step 12, 2.5 s "
                   "ago\n") &&
          Contains("exit code 3              nothing for 1 min 30 s\n") &&
          Contains("1002  SIGSEGV\n") && Contains("1003  stopped\n") &&
          Contains("1004  asked to end by SIGTERM\n"));
  JobStatus status = some_status();
  status.logs.clear();
  status.job = "a\nb\x1b[2J";
  CHECK_THAT(status_text(status),
             Contains("no logs are kept") && Contains("job a\\nb\\x1b[2J on"));
  status.restarts = 1;
  status.max_restarts = 1;
  CHECK_THAT(status_text(status), Contains("1 of 1 restart used;"));
}

TEST_CASE("status of many workers: those of interest, on one screen") {
  JobStatus status = some_status();
  status.workers.clear();
  status.worker_count = 64;
  for (int rank = 0; rank < 64; ++rank) {
    status.workers.push_back(worker_with(rank));
    status.workers.back().progress = {true, "", rank == 50 ? 90s : 1s};
  }
  status.workers[60].end = ExitStatus{.code = 9};
  const std::string text = status_text(status);
  CHECK(std::count(text.begin(), text.end(), '\n') <= 25);
  const size_t ended = text.find(" exit code 9 ");
  const size_t quiet = text.find(" 1 min 30 s ago");
  const size_t first = text.find("\n   4 ");
  CHECK(ended < quiet);
  CHECK(quiet < first);
  CHECK(first != std::string::npos);
  CHECK_THAT(text, Contains("   and 44 more (--json has them)\n"));
}

TEST_CASE("times for people") {
  CHECK(duration_text(0ms) == "0.0 s");
  CHECK(duration_text(59'999ms) == "59.9 s");
  CHECK(duration_text(60s) == "1 min 0 s");
  CHECK(duration_text(2h + 5min + 59s) == "2 h 5 min");
  CHECK(duration_text(76h) == "3 d 4 h");
}
