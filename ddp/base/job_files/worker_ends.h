#pragma once

#include <optional>
#include <string>

// The file named by DDPRUN_ENDS_FILE: the workers of this host that have ended.
// ddprun appends a line for each, in the order of their ends:
//
//   3 SIGKILL
//   1 exit code 0
//
// The number is the RANK of the worker. The file exists once a worker has
// ended. Ranks that wait for other ranks before the peer monitor is connected
// read it, because an ended worker will not join. Includes no LibTorch.
namespace ddp::detail {

struct WorkerEnd {
  int rank = 0;
  std::string how;  ///< "exit code 3" or "SIGSEGV"
};

/// Appends a line to the file; ignores failures.
void add_worker_end(const std::string& path, const WorkerEnd& end) noexcept;

/// Returns the first worker that ended, or std::nullopt without an end or file.
std::optional<WorkerEnd> first_worker_end(const std::string& path);

}  // namespace ddp::detail
