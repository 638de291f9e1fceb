#pragma once

#include <string>
#include <vector>

namespace ddp::detail {

/// Properties of this process that make it unusable for LibTorch after a
/// fork().
struct ForkHazards {
  int threads = 1;
  /// Targets of the open file descriptors, as listed in /proc/self/fd.
  std::vector<std::string> open_files;
  bool ignores_children = false;  ///< SIGCHLD is ignored
};

/// Inspects this process. Waits at most 100 ms for the kernel to remove threads
/// that have been joined.
ForkHazards find_fork_hazards();

/// Pure: returns why the process must not be forked and how to avoid it, or "".
std::string fork_problem(const ForkHazards& hazards);

}  // namespace ddp::detail
