// The error file tells the launcher why a rank ended. Each rank is a forked
// process.
#include "ddp/record_errors.h"

#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>

#include "ddp/collectives.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace record_errors_test {

using Catch::Contains;
using nlohmann::json;
using test::RankEnd;
using test::TemporaryFolder;

class NoData : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs ranks in a process group, with an error file each.
std::vector<RankEnd> run_with_error_files(
    int size,
    const TemporaryFolder& folder,
    const std::function<void(int rank)>& body) {
  return test::run_rank_processes(size, [&](int rank) {
    const std::string file = folder / std::to_string(rank);
    ::setenv("TORCHELASTIC_ERROR_FILE", file.c_str(), 1);
    init_process_group(ProcessGroupOptions().backend("gloo"));
    body(rank);
    destroy_process_group();
  });
}

json error_of(const TemporaryFolder& folder, int rank) {
  return json::parse(test::read_file(folder / std::to_string(rank)))["message"];
}

TEST_CASE("an uncaught exception is in the error file", "[record_errors]") {
  const int size = GENERATE(1, 2);
  const TemporaryFolder folder;
  const auto before = std::time(nullptr);
  const auto ends = run_with_error_files(size, folder, [&](int rank) {
    if (rank == size - 1) {
      std::thread([] { throw NoData("no data \"today\""); }).join();
    }
  });
  CHECK(ends.back().signal == SIGABRT);
  const json error = error_of(folder, size - 1);
  CHECK_THAT(error["message"].get<std::string>(),
             Contains("record_errors_test::NoData: no data \"today\""));
  CHECK_THAT(error["extraInfo"]["py_callstack"].get<std::string>(),
             Contains("no data \"today\"\nframe #"));
  const auto time =
      std::stoll(error["extraInfo"]["timestamp"].get<std::string>());
  CHECK(time >= before);
  CHECK(time <= std::time(nullptr));
  CHECK(folder.size() == 1);
}

TEST_CASE("stdout is flushed before an exception ends the rank",
          "[record_errors]") {
  const TemporaryFolder folder;
  const std::string written = folder / "stdout";
  const auto ends = run_with_error_files(1, folder, [&](int) {
    REQUIRE(std::freopen(written.c_str(), "w", stdout) != nullptr);
    std::fputs("epoch 1\n", stdout);
    std::thread([] { throw NoData("no data"); }).join();
  });
  CHECK(ends.back().signal == SIGABRT);
  CHECK(test::read_file(written) == "epoch 1\n");
}

TEST_CASE("a recorded body that throws ends with 1 and tells the ranks",
          "[record_errors]") {
  const TemporaryFolder folder;
  const auto ends = run_with_error_files(2, folder, [&](int rank) {
    const int code = record_errors([&]() -> int {
      TORCH_CHECK(rank == 0, "Expected rank 0, but got rank ", rank);
      return 7;
    });
    if (rank == 1) {
      std::_Exit(code);
    }
    TORCH_CHECK(code == 7, "Expected the body's code");
    barrier();
  });
  CHECK(ends[1].exit_code == 1);
  CHECK_THAT(ends[0].error,
             Contains("rank 1 has left because of an exception") &&
                 Contains("Expected rank 0, but got rank 1"));
  const json error = error_of(folder, 1);
  CHECK(error["message"] == "c10::Error: Expected rank 0, but got rank 1");
  CHECK_THAT(error["extraInfo"]["py_callstack"].get<std::string>(),
             Contains("Exception raised from"));
  CHECK(folder.size() == 1);
}

TEST_CASE("without an error file, or with none that can be written",
          "[record_errors]") {
  const TemporaryFolder folder;
  const std::string fifo = folder / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const std::string file = GENERATE(false, true) ? fifo : "";
  const auto ends = test::run_rank_processes(1, [&](int) {
    ::setenv("TORCHELASTIC_ERROR_FILE", file.c_str(), 1);
    std::_Exit(record_errors([]() -> int { throw 7; }));
  });
  CHECK(ends[0].exit_code == 1);
  CHECK(folder.size() == 1);
  struct stat status {};
  REQUIRE(::lstat(fifo.c_str(), &status) == 0);
  CHECK(S_ISFIFO(status.st_mode));  // no file has replaced it
}

}  // namespace record_errors_test
}  // namespace ddp
