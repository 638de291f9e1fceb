#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>

#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;

namespace {

nlohmann::json status_of(const Ddprun& job) {
  const auto result =
      run_ddprun({"--status", "--json", std::to_string(job.pid())});
  CAPTURE(result.err);
  REQUIRE(result.code() == 0);
  const auto document = nlohmann::json::parse(result.out);
  REQUIRE(document["jobs"].size() == 1);
  return document["jobs"][0];
}

}  // namespace

TEST_CASE("--status tells what a job does, wherever its files are") {
  const ddp::test::TemporaryFolder logs;
  Ddprun::Arguments arguments{"--nproc-per-node=2",
                              "--rdzv-id=night",
                              "--max-restarts=3",
                              "--hang-timeout=60"};
  const bool keeps_logs = GENERATE(true, false);
  if (keeps_logs) {
    arguments.push_back("--log-dir=" + logs.path());
  }
  arguments.insert(arguments.end(),
                   {"sh",
                    "-c",
                    // $$$$ is the shell's $$.
                    "echo step 7 > $DDPRUN_PROGRESS_FILE; "
                    "[ $RANK = 1 ] && exit 0; echo pid=$$$$; "
                    "kill -STOP $$$$; read line"});
  Ddprun job(arguments);
  job.await_out("pid=");
  job.await_state(job.number_after("pid="), 'T');
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(20);
  nlohmann::json status = status_of(job);
  while (status["ranks"][1]["state"] != "ended") {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    status = status_of(job);
  }
  CHECK(status["ranks"][0]["state"] == "stopped");
  CHECK(status["job"] == "night");
  CHECK(status["pid"] == job.pid());
  CHECK(status["attempts"] == 1);
  CHECK(status["restarts"] == 0);
  CHECK(status["max_restarts"] == 3);
  CHECK(status["world_size"] == 2);
  CHECK(status["logs"].is_string() == keeps_logs);
  CHECK(status["ranks"][1]["exit_code"] == 0);
  CHECK(status["ranks"][0]["progress"]["text"] == "step 7");
  const auto text = run_ddprun({"--status", "night"});
  CHECK_THAT(text.out, Contains("job night on ") && Contains("  stopped  "));
  job.signal(SIGTERM);
  const auto result = job.finish();
  CHECK(!result.left_something);
  CHECK(!job.left_files());
  const auto after = run_ddprun({"--status", "night"});
  CHECK(after.code() == 1);
  CHECK_THAT(after.err, Contains("no job \"night\" of yours runs"));
}
