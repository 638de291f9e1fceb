#include "launcher/job/status/status_report.h"

#include <nlohmann/json.hpp>

#include "launcher/base/error.h"
#include "launcher/options/options.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace std::chrono_literals;

namespace {

StatusOptions status_options(std::vector<std::string> arguments) {
  return std::get<StatusOptions>(parse_options(std::move(arguments), {}));
}

JobStatus running(const std::string& job,
                  pid_t pid,
                  std::chrono::milliseconds uptime) {
  JobStatus status;
  status.job = job;
  status.pid = pid;
  status.supervisor = pid + 1;
  status.phase = "running";
  status.uptime = uptime;
  return status;
}

}  // namespace

TEST_CASE("--status takes one job, or none, and --json before or after it") {
  CHECK(status_options({"--status"}).job == "");
  CHECK(status_options({"--status", "night"}).job == "night");
  CHECK(status_options({"--status", "--", "-x"}).job == "-x");
  CHECK(!status_options({"--status", "night"}).as_json);
  CHECK(status_options({"--status", "--json", "night"}).as_json);
  CHECK(status_options({"--status", "night", "--json"}).as_json);
  CHECK_THROWS_WITH(parse_options({"--status", "a", "b"}, {}),
                    "--status: expected one job at most, but got a and b");
  CHECK_THROWS_WITH(parse_options({"--status", "--jsom"}, {}),
                    Contains("unknown option --jsom (did you mean --json?)"));
  CHECK_THROWS_WITH(parse_options({"--status", "--doctor"}, {}),
                    Contains("expected to be without --doctor"));
}

TEST_CASE("--status asks of no scheduler and needs no hosts") {
  const Environment variables{{"SLURM_JOB_ID", "7"},
                              {"SLURM_STEP_NODELIST", "[broken"},
                              {"PET_NNODES", "3"}};
  CHECK_NOTHROW(parse_options({"--status"}, variables));
}

TEST_CASE("a report has the jobs, the longest first, and what was noticed") {
  const StatusAnswers answers{
      .jobs = {running("day", 10, 5s), running("night", 20, 9s)},
      .silent = {{"/tmp/ddprun_a/status.json", 30}},
      .stale = {"/tmp/ddprun_b/status.json"}};
  const std::string text = status_report(answers, {});
  CHECK(text.find("job night on") < text.find("\n\njob day on"));
  CHECK_THAT(text,
             Contains("\nprocess 30 does not tell its status: it was stopped, "
                      "the kernel holds it, or the disk of "
                      "/tmp/ddprun_a/status.json is full\n") &&
                 Contains("\na ddprun that was killed has left /tmp/ddprun_b; "
                          "it can be removed\n"));
  const auto json = nlohmann::json::parse(
      status_report(answers, {.job = {}, .as_json = true}));
  CHECK(json["jobs"][0]["job"] == "night");
  CHECK(json["jobs"][1]["pid"] == 10);
  CHECK(json["silent"][0]["pid"] == 30);
  CHECK(json["stale"][0] == "/tmp/ddprun_b/status.json");
  CHECK(status_report({}, {}) == "no job of yours runs on this machine\n");
}

TEST_CASE("a report of one job: by its id, or one of its processes") {
  const StatusAnswers answers{
      .jobs = {running("day", 10, 5s), running("night", 20, 9s)},
      .silent = {{"/tmp/ddprun_a/status.json", 30}},
      .stale = {"/tmp/ddprun_b/status.json"}};
  for (const char* job : {"night", "20", "21"}) {
    CAPTURE(job);
    const std::string text = status_report(answers, {job});
    CHECK_THAT(text, Contains("job night on") && !Contains("job day on"));
    CHECK_THAT(text, !Contains("does not tell") && !Contains("killed"));
  }
  CHECK_THROWS_WITH(status_report(answers, {"noon"}),
                    "no job \"noon\" of yours runs on this machine; `ddprun "
                    "--status` lists those that do (1 did not)");
}
