#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "test/support/catch.h"

// Programs that fail over the stand-in, and their messages on stderr.
namespace fake_gpu::test {
namespace misuse_test {

struct Ended {
  int code = 0;  // 128 + signal if killed by a signal
  std::string text;
};

/// Runs a misuse program and returns its result. `environment` has the form
/// "NAME=value ...". The program is killed after a minute.
Ended run(const std::string& what, const std::string& environment = "") {
  const std::string command = "env " + environment +
                              " timeout --signal=KILL 60 '" MISUSE_PATH "' " +
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

TEST_CASE("memory of another device than the stream's ends the process") {
  const auto what = GENERATE("memset_elsewhere", "copy_elsewhere");
  const auto ended = run(what);
  CHECK(ended.code == kAborted);
  CHECK_THAT(ended.text,
             Catch::Contains("on a stream of device 0 touches memory of device "
                             "1"));
}

TEST_CASE("a collective over another device's memory ends the process") {
  const auto ended = run("reduce_elsewhere", "KILL_THE_OTHER=1");
  CHECK_THAT(ended.text,
             Catch::Contains("NCCL all_reduce of 5 float32, sum, root 0 on a "
                             "stream of device ") &&
                 Catch::Contains("ended by signal 6"));
}

TEST_CASE("two ranks on one device are refused, as NCCL does") {
  const auto ended = run("share_device");
  CHECK_THAT(ended.text,
             Catch::Contains("Duplicate GPU detected") &&
                 Catch::Contains("rank 0: invalid usage") &&
                 Catch::Contains("rank 1: invalid usage") &&
                 Catch::Contains("rank 0 ended with code 2") &&
                 Catch::Contains("rank 1 ended with code 2"));
}

TEST_CASE("a function without a stand-in says its name") {
  const auto ended = run("call_missing_function");
  CHECK(ended.code == kAborted);
  CHECK_THAT(ended.text,
             Catch::Contains("cudaGraphDebugDotPrint has no stand-in"));
}

TEST_CASE("a program may end with work queued") {
  const auto mode = GENERATE("eager", "lazy", "mixed", "priority");
  const auto ended =
      run("leave_work_behind", std::string("FAKE_GPU_MODE=") + mode);
  CHECK(ended.code == 0);
  CHECK(ended.text == "");
}

TEST_CASE("counts are appended to a file when a process ends") {
  const std::string path = std::filesystem::temp_directory_path() /
                           ("fake_gpu_counts." + std::to_string(::getpid()));
  for (int i = 0; i < 2; ++i) {
    CHECK(run("leave_work_behind", "FAKE_GPU_COUNTS=" + path).code == 0);
  }
  std::ifstream file(path);
  std::string line;
  int lines = 0;
  while (std::getline(file, line)) {
    ++lines;
    CHECK_THAT(line,
               Catch::Contains("{\"pid\": ") &&
                   Catch::Contains("\"memsets\": 100, \"allocations\": 1,"));
  }
  CHECK(lines == 2);
  std::filesystem::remove(path);
}

TEST_CASE("a trace tells what is queued, waited for and run") {
  const auto ended = run(
      "ranks", "FAKE_GPU_TRACE=1 FAKE_GPU_MODE=lazy FAKE_GPU_FAULT=die:0:2");
  CHECK_THAT(ended.text,
             Catch::Contains("queue stream 0 #1: NCCL all_reduce") &&
                 Catch::Contains("run stream 0 #1: NCCL all_reduce"));
}

TEST_CASE("a wrong setting ends the process") {
  const auto ended = run("leave_work_behind", "FAKE_GPU_MODE=fast");
  CHECK(ended.code == kAborted);
  CHECK_THAT(ended.text,
             Catch::Contains("Expected FAKE_GPU_MODE to be eager, lazy, mixed "
                             "or priority, but got fast"));
}

TEST_CASE("two processes all-reduce") {
  const auto mode = GENERATE("eager", "lazy", "mixed", "priority");
  const auto ended = run(GENERATE("ranks", "recorded_ranks"),
                         std::string("FAKE_GPU_MODE=") + mode);
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
  const auto ended =
      run(GENERATE("ranks", "recorded_ranks"), "FAKE_GPU_FAULT=die:1:3");
  CHECK_THAT(ended.text,
             Catch::Contains("rank 1 dies") &&
                 Catch::Contains("rank 1 ended by signal 9") &&
                 Catch::Contains("rank 0: call 3 did not finish") &&
                 Catch::Contains("rank 0 ended with code 3"));
}

TEST_CASE("a rank that stalls leaves the other waiting") {
  const auto ended =
      run(GENERATE("ranks", "recorded_ranks"), "FAKE_GPU_FAULT=stall:0:2");
  CHECK_THAT(ended.text,
             Catch::Contains("rank 0 stalls in all_reduce of 5 float32, sum") &&
                 Catch::Contains("rank 0: call 2 did not finish") &&
                 Catch::Contains("rank 1: call 2 did not finish") &&
                 Catch::Contains("aborts a communicator with 1 unfinished"));
}

TEST_CASE("an asynchronous error is reported by the rank that has it") {
  const auto ended =
      run(GENERATE("ranks", "recorded_ranks"), "FAKE_GPU_FAULT=error:1:2");
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

}  // namespace misuse_test
}  // namespace fake_gpu::test
