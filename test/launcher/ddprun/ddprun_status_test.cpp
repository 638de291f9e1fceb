#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>

#include "test/launcher/child_setup.h"
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
                    // $$$$ becomes the shell's $$.
                    "echo step 7 > $DDPRUN_JOB_DIR/progress_$RANK; "
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

TEST_CASE(
    "a job whose temporary folder is full goes on, and --status says so") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can mount a small disk");
    return;
  }
  const ddp::test::TemporaryFolder small;
  const auto fill = [&] {
    hide_mount(small.path().c_str(), "size=64k");
    const std::string most(1 << 20, 'x');
    ddp::test::write_file(small / "full", most);
  };
  const std::string status = in_shell(ddprun_path()) + " --status";
  const auto result =
      run_ddprun({"--max-restarts=1",
                  "sh",
                  "-c",
                  "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3; "
                  "stat -c 'size %s' " +
                      in_shell(small / "full") + "; " + status},
                 {{"TMPDIR", small.path()}},
                 "",
                 {},
                 fill);
  CAPTURE(result.out, result.err);
  CHECK(result.code() == 0);
  if (result.out.find("size 1048576") != std::string::npos) {
    WARN("skipped: no small disk could be mounted");
    return;
  }
  CHECK_THAT(result.out,
             Contains("does not tell its status") &&
                 Contains("or the disk of " + small.path()));
}
