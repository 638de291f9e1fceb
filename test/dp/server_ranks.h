#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "ddp/process_group.h"
#include "dp/parameter_server.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"

namespace dp::test {

/// Longer than any wait of a test.
constexpr std::chrono::seconds kPatience{60};

/// Runs `body(rank)` in a process for each rank, which has joined a job over
/// Gloo. Returns each rank's error, "" for none.
///
/// @param timeout  time-out of the job's groups.
inline std::vector<std::string> try_ranks(
    int size,
    const std::function<void(int rank)>& body,
    std::chrono::milliseconds timeout = kPatience) {
  const auto ends = ddp::test::run_rank_processes(size, [&](int rank) {
    ::setenv("DDP_QUIET", "1", /*overwrite=*/1);
    ddp::init_process_group(
        ddp::ProcessGroupOptions().backend("gloo").timeout(timeout));
    body(rank);
    ddp::destroy_process_group();
  });
  std::vector<std::string> errors;
  for (const auto& end : ends) {
    errors.push_back(end.signal == 0 ? end.error
                                     : "signal " + std::to_string(end.signal));
  }
  return errors;
}

/// Like `try_ranks`, but no rank may throw.
inline void run_ranks(int size, const std::function<void(int rank)>& body) {
  const auto errors = try_ranks(size, body);
  CHECK(errors == std::vector<std::string>(errors.size()));
}

}  // namespace dp::test
