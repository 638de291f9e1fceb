#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "test/launcher/child_setup.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;
using ddp::test::TemporaryFolder;

namespace {

nlohmann::json report_in(const std::string& file) {
  return nlohmann::json::parse(ddp::test::read_file(file));
}

}  // namespace

TEST_CASE("--report-json replaces a file, and no link, device or pipe") {
  const TemporaryFolder folder;
  const std::string target = folder / "target";
  ddp::test::write_file(target, "kept");
  REQUIRE(::symlink(target.c_str(), (folder / "link").c_str()) == 0);
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const std::string& file :
       {folder / "link", folder / "pipe", std::string("/dev/fd/1")}) {
    const Result result =
        run_ddprun({"--report-json=" + file, "echo", "started"});
    CHECK(result.code() == 2);
    CHECK(result.out.empty());
    CHECK_THAT(result.err,
               Contains("ddprun: --report-json: expected a regular file, or no "
                        "file yet, because it is replaced as a whole, but " +
                        file + " is "));
  }
  CHECK(ddp::test::read_file(target) == "kept");
  CHECK(run_ddprun({"--report-json=" + target, "true"}).code() == 0);
}

TEST_CASE("--report-json tells what a running job does, and how it ended") {
  const TemporaryFolder folder;
  const std::string file = folder / "report.json";
  const TemporaryFolder logs;
  Ddprun::Arguments arguments{"--nproc-per-node=2",
                              "--rdzv-id=night",
                              "--max-restarts=3",
                              "--report-json=" + file};
  const bool keeps_logs = GENERATE(true, false);
  if (keeps_logs) {
    arguments.push_back("--log-dir=" + logs.path());
  }
  arguments.insert(
      arguments.end(),
      {"sh", "-c", "[ $RANK = 1 ] && exit 0; echo ready; exec sleep 600"});
  Ddprun job(arguments);
  job.await_out("ready");
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(20);
  nlohmann::json report = report_in(file);
  while (report["now"].is_null() ||
         report["now"]["workers"][1]["state"] != "ended") {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    report = report_in(file);
  }
  CHECK(report["run_id"] == "night");
  CHECK(report["state"] == "running");
  CHECK(report["phase"] == "running");
  CHECK(report["max_restarts"] == 3);
  const nlohmann::json now = report["now"];
  CHECK(now["restarts"] == 0);
  CHECK(now["host_count"] == 1);
  CHECK(now["world_size"] == 2);
  CHECK(now["logs"].is_string() == keeps_logs);
  CHECK(now["workers"][0]["state"] == "running");
  CHECK(now["workers"][1]["exit_code"] == 0);
  job.signal(SIGTERM);
  const auto result = job.finish();
  CHECK(!result.left_something);
  CHECK(!job.left_files());
  report = report_in(file);
  CHECK(report["state"] == "ended");
  CHECK(report["phase"] == "done");
  CHECK(report["exit_code"] == 128 + SIGTERM);
  CHECK(report["now"]["workers"].empty());
  CHECK(report["attempts"].size() == 1);
}

TEST_CASE("--report-json lists the workers while all of them run") {
  const TemporaryFolder folder;
  const std::string file = folder / "report.json";
  Ddprun job({"--nproc-per-node=2",
              "--report-json=" + file,
              "sh",
              "-c",
              "echo ready; exec sleep 600"});
  job.await_out("ready", 2);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(15);
  nlohmann::json now = report_in(file)["now"];
  while (now.is_null() || now["workers"].empty()) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    now = report_in(file)["now"];
  }
  REQUIRE(now["workers"].size() == 2);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(now["workers"][rank]["rank"] == rank);
    CHECK(now["workers"][rank]["state"] == "running");
    CHECK(now["workers"][rank]["pid"] > 1);
  }
  job.signal(SIGTERM);
  job.finish();
}

TEST_CASE("a job whose temporary folder is full goes on") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can mount a small disk");
    return;
  }
  const TemporaryFolder small;
  const auto fill = [&] {
    hide_mount(small.path().c_str(), "size=64k");
    const std::string most(1 << 20, 'x');
    ddp::test::write_file(small / "full", most);
  };
  const auto result = run_ddprun({"--max-restarts=1",
                                  "sh",
                                  "-c",
                                  "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit "
                                  "3; stat -c 'size %s' " +
                                      in_shell(small / "full")},
                                 {{"TMPDIR", small.path()}},
                                 "",
                                 {},
                                 fill);
  CAPTURE(result.out, result.err);
  CHECK(result.code() == 0);
  if (result.out.find("size 1048576") != std::string::npos) {
    WARN("skipped: no small disk could be mounted");
  }
}
