#include <sys/wait.h>

#include <cstdio>
#include <memory>
#include <string>

#include "test/support/catch.h"

// Programs that end badly over the stand-in, and what they leave on stderr.
namespace fake_gpu::test {
namespace {

struct Ended {
  int code = 0;  // 128 + signal
  std::string text;
};

/// `environment` is of the form "NAME=value ..."; killed after a minute.
Ended run(const std::string& what, const std::string& environment = "") {
  const std::string command = "env " + environment +
                              " timeout --signal=KILL 60 " MISUSE_PATH " " +
                              what + " 2>&1";
  std::FILE* output = ::popen(command.c_str(), "r");
  REQUIRE(output != nullptr);
  Ended result;
  char buffer[4096];
  while (const size_t bytes = std::fread(buffer, 1, sizeof buffer, output)) {
    result.text.append(buffer, bytes);
  }
  const int status = ::pclose(output);
  result.code =
      WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

constexpr int kSegmentationFault = 139;
constexpr int kAborted = 134;

TEST_CASE("the host cannot read device memory") {
  const auto ended = run("read_device_memory");
  CHECK(ended.code == kSegmentationFault);
  CHECK_THAT(ended.text, Catch::Contains("reading device memory"));
}

TEST_CASE("an unknown kernel ends the process by its name") {
  const auto ended = run("launch_unknown_kernel");
  CHECK(ended.code == kAborted);
  CHECK_THAT(ended.text, Catch::Contains("void users::mystery<float>(float*)"));
}

TEST_CASE("a function without a stand-in says its name") {
  const auto ended = run("call_missing_function");
  CHECK(ended.code == kAborted);
  CHECK_THAT(ended.text, Catch::Contains("cudaGraphLaunch has no stand-in"));
}

TEST_CASE("two processes all-reduce") {
  const auto mode = GENERATE("eager", "lazy", "mixed", "priority");
  const auto ended = run("ranks", std::string("FAKE_GPU_MODE=") + mode);
  CHECK_THAT(ended.text,
             Catch::Contains("rank 0 finished all calls") &&
                 Catch::Contains("rank 1 finished all calls") &&
                 Catch::Contains("rank 0 ended with code 0") &&
                 Catch::Contains("rank 1 ended with code 0"));
}

TEST_CASE("collectives that differ are reported by both") {
  const auto ended = run("differ");
  CHECK_THAT(ended.text,
             Catch::Contains("collectives differ between ranks") &&
                 Catch::Contains("all_reduce of 5 float32, sum") &&
                 Catch::Contains("all_reduce of 6 float32, sum") &&
                 Catch::Contains("rank 0 ended by signal 6") &&
                 Catch::Contains("rank 1 ended by signal 6"));
}

TEST_CASE("a rank that dies leaves the other waiting") {
  const auto ended = run("ranks", "FAKE_GPU_FAULT=die:1:3");
  CHECK_THAT(ended.text,
             Catch::Contains("rank 1 dies") &&
                 Catch::Contains("rank 1 ended by signal 9") &&
                 Catch::Contains("rank 0: call 3 did not finish") &&
                 Catch::Contains("rank 0 ended with code 3"));
}

TEST_CASE("a rank that stalls leaves the other waiting") {
  const auto ended = run("ranks", "FAKE_GPU_FAULT=stall:0:2");
  CHECK_THAT(ended.text,
             Catch::Contains("rank 0 stalls in all_reduce of 5 float32, sum") &&
                 Catch::Contains("rank 0: call 2 did not finish") &&
                 Catch::Contains("rank 1: call 2 did not finish") &&
                 Catch::Contains("aborts a communicator with 1 unfinished"));
}

TEST_CASE("an asynchronous error is reported by the rank that has it") {
  const auto ended = run("ranks", "FAKE_GPU_FAULT=error:1:2");
  CHECK_THAT(ended.text,
             Catch::Contains("rank 1: call 2 remote process exited") &&
                 Catch::Contains("rank 0: call 2 did not finish"));
}

TEST_CASE("a rank that never joins is named") {
  const auto ended = run("ranks",
                         "FAKE_GPU_FAULT=never_join:1 FAKE_GPU_JOIN_SECONDS=1 "
                         "KILL_THE_OTHER=1");
  CHECK_THAT(ended.text,
             Catch::Contains("rank 1 never joins") &&
                 Catch::Contains("these ranks to join its communicator: 1") &&
                 Catch::Contains("rank 0: unhandled system error") &&
                 Catch::Contains("rank 0 ended with code 2"));
}

}  // namespace
}  // namespace fake_gpu::test
