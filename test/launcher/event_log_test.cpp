#include "launcher/job/event_log.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "test/launcher/fake_job.h"
#include "test/support/catch.h"

using namespace launcher;
using namespace launcher::test;
using nlohmann::json;

namespace {

/// Parses each line of a text as JSON.
std::vector<json> events_in(const std::string& text) {
  std::vector<json> events;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind('{', 0) == 0) {
      events.push_back(json::parse(line));
    }
  }
  return events;
}

/// Returns "WORKER 1 FAILED" for each event.
std::vector<std::string> summary_of(const std::vector<json>& events) {
  std::vector<std::string> result;
  for (const json& event : events) {
    const json& metadata = event.at("metadata");
    const std::string state = metadata.at("state");
    CHECK(event.at("name") == "torchelastic.worker.status." + state);
    CHECK(event.at("timestamp") == 0);
    const json& rank = metadata.at("global_rank");
    result.push_back(event.at("source").get<std::string>() + " " +
                     (rank.is_null() ? "" : rank.dump() + " ") + state);
  }
  return result;
}

}  // namespace

TEST_CASE("events have torchrun's fields") {
  Job job;
  job.run_id = "job7";
  job.host_name = "node7";
  job.program.path = "/bin/train";
  job.options.role = "trainer";
  const World world{.generation = 3,
                    .restarts = 2,
                    .host_rank = 1,
                    .host_count = 4,
                    .first_rank = 10,
                    .world_size = 40};
  WorkerExit exit;
  exit.rank = 11;
  exit.local_rank = 1;
  exit.pid = 77;
  exit.status.signal = 11;
  exit.error =
      "{\"message\": \"caf\xc3\xa9 \xff\"}";  // last byte: invalid UTF-8
  AttemptResult result;
  result.workers.exits = {exit};
  result.workers.survivors = {{.rank = 12, .pid = 78}};
  Report failed;
  failed.text = "rank 11 failed\n";
  failed.exit_code = 139;
  const auto events = events_in(
      events_of_end(job, world, result, failed, std::chrono::seconds(90)));
  REQUIRE(events.size() == 3);
  json metadata = events[0].at("metadata");
  const json details = json::parse(metadata.at("metadata").get<std::string>());
  CHECK(details == json{{"group_world_size", 4},
                        {"entry_point", "/bin/train"},
                        {"local_rank", json::array({1})},
                        {"role_rank", json::array({11})},
                        {"role_world_size", json::array({40})},
                        {"exit_code", json::array({-11})},
                        {"worker_pid", json::array({77})}});
  CHECK(metadata.at("raw_error") ==
        "{\"message\": \"caf\xc3\xa9 \xef\xbf\xbd\"}");
  metadata.erase("metadata");
  metadata.erase("raw_error");
  CHECK(metadata == json{{"run_id", "job7"},
                         {"global_rank", 11},
                         {"group_rank", 1},
                         {"worker_id", "77"},
                         {"role", "trainer"},
                         {"hostname", "node7"},
                         {"state", "FAILED"},
                         {"total_run_time", 90},
                         {"rdzv_backend", nullptr},
                         {"agent_restarts", 2},
                         {"duration_ms", nullptr}});
  const auto details_in = [](const json& event) {
    return json::parse(event.at("metadata").at("metadata").get<std::string>());
  };
  World of_two_roles = world;
  of_two_roles.role = RoleRanks{.first_rank = 4, .size = 6};
  const json in_its_role = details_in(
      events_in(events_of_end(job, of_two_roles, result, failed, {})).at(0));
  CHECK(in_its_role.at("role_rank") == json::array({5}));
  CHECK(in_its_role.at("role_world_size") == json::array({6}));
  CHECK(events[2].at("source") == "AGENT");
  CHECK(events[2].at("metadata").at("raw_error") == "rank 11 failed\n");
}

TEST_CASE("events of a job: starts, the workers' ends, ddprun's own") {
  FakeJob job(2, /*max_restarts=*/1);
  job.job.options.logs_events = true;
  using Summary = std::vector<std::string>;
  SECTION("a restart, then success") {
    CHECK(job.run({[&] { job.exit(0, {.code = 3}); },
                   [&] { job.exit(1, {}); },
                   [&] { job.exit(0, {}); }}) == 0);
    CHECK(summary_of(events_in(job.text)) == Summary{"WORKER 0 START",
                                                     "WORKER 1 START",
                                                     "WORKER 0 START",
                                                     "WORKER 1 START",
                                                     "WORKER 1 SUCCEEDED",
                                                     "WORKER 0 SUCCEEDED",
                                                     "AGENT SUCCEEDED"});
  }
  SECTION("failure") {
    job.job.options.max_restarts = 0;
    CHECK(job.run({[&] { job.exit(1, {.code = 3}); }}) == 3);
    CHECK(summary_of(events_in(job.text)) == Summary{"WORKER 0 START",
                                                     "WORKER 1 START",
                                                     "WORKER 1 FAILED",
                                                     "WORKER 0 TERMINATED",
                                                     "AGENT FAILED"});
  }
  SECTION("hosts that do not meet") {
    job.answers_joins = false;
    CHECK(job.run({[&] { job.post(RendezvousLost{"nobody is there"}); }}) == 1);
    const auto events = events_in(job.text);
    CHECK(summary_of(events) == Summary{"AGENT FAILED"});
    CHECK_THAT(events.at(0).at("metadata").at("raw_error").get<std::string>(),
               Catch::Contains("nobody is there"));
  }
  SECTION("a signal") {
    CHECK(job.run({[&] { job.post(SignalReceived{15}); }}) == 128 + 15);
    CHECK(summary_of(events_in(job.text)) == Summary{"WORKER 0 START",
                                                     "WORKER 1 START",
                                                     "WORKER 0 TERMINATED",
                                                     "WORKER 1 TERMINATED",
                                                     "AGENT FAILED"});
  }
}

TEST_CASE("no events unless they are asked for") {
  FakeJob job(1, /*max_restarts=*/0);
  CHECK(job.run({[&] { job.exit(0, {}); }}) == 0);
  CHECK(events_in(job.text).empty());
}
