#pragma once

#include <optional>
#include <string>

// The file that DDPRUN_ENDS_FILE names: which workers of this host have ended.
// ddprun adds a line for each, in the order of their ends:
//
//   3 SIGKILL
//   1 exit code 0
//
// The number is the RANK of the worker. The file is there once a worker has
// ended. Ranks that wait for others before they are connected read it:
// somebody who has ended will not come. Includes no LibTorch.
namespace ddp::detail {

struct WorkerEnd {
  int rank = 0;
  std::string how;  ///< "exit code 3" or "SIGSEGV"
};

/// Adds a line to the file. Where that cannot be, nobody is told.
void add_worker_end(const std::string& path, const WorkerEnd& end) noexcept;

/// The worker that ended first; nothing where none has, or there is no file.
std::optional<WorkerEnd> first_worker_end(const std::string& path);

}  // namespace ddp::detail
