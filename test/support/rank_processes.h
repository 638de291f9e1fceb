#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace ddp::test {

/// The end of a rank's process.
struct RankEnd {
  std::string error;  ///< text of the exception that left its function, or ""
  int exit_code = 0;
  int signal = 0;  ///< signal that killed the process, or 0
};

/// Forks a process for each rank, with the variables of a launcher, runs
/// `body(rank)` in it and waits for all processes. A failure of one does not
/// stop the others. Ranks that still run after `patience` are killed, with
/// "still ran" as their error.
///
/// The program must not have threads yet.
std::vector<RankEnd> run_rank_processes(
    int size,
    const std::function<void(int rank)>& body,
    std::chrono::milliseconds patience = std::chrono::seconds(60));

/// Same as above for `jobs` jobs of `size` ranks at the same time. Returns the
/// ends by job and rank.
std::vector<std::vector<RankEnd>> run_jobs(
    int jobs,
    int size,
    const std::function<void(int job, int rank)>& body,
    std::chrono::milliseconds patience = std::chrono::seconds(60));

}  // namespace ddp::test
