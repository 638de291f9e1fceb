#pragma once

#include <string>
#include <vector>

namespace ddp::detail {

/// What makes a fork() of this process unusable for LibTorch.
struct ForkHazards {
  int threads = 1;
  /// What its file descriptors lead to, as /proc/self/fd has it.
  std::vector<std::string> open_files;
  bool ignores_children = false;  ///< SIGCHLD is ignored
};

/// Looks at this process. A thread that has been joined may need a moment to
/// go; it is waited for, at most 100 ms.
ForkHazards find_fork_hazards();

/// Pure: why a process must not be forked, and what to do, or "".
std::string fork_problem(const ForkHazards& hazards);

}  // namespace ddp::detail
