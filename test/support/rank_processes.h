#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace ddp::test {

/// How the process of a rank ended.
struct RankEnd {
  std::string error;  ///< what left its function; "" for nothing
  int exit_code = 0;
  int signal = 0;  ///< 0: it exited
};

/// Forks a process for each rank, with the variables of a launcher, runs
/// `body(rank)` in it and waits for all. None is stopped because another one
/// has failed. Ranks that still run when `patience` is over are killed, with
/// "still ran" as their error.
///
/// The program must have no threads yet.
std::vector<RankEnd> run_rank_processes(
    int size,
    const std::function<void(int rank)>& body,
    std::chrono::milliseconds patience = std::chrono::seconds(60));

}  // namespace ddp::test
