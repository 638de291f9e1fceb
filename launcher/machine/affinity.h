#pragma once

#include <vector>

namespace launcher {

/// Returns the ids of the CPUs that this process may run on; never empty.
std::vector<int> usable_cpus();

/// Set of CPUs for a child process. Created before a fork, so that the child
/// can bind itself.
class CpuSet {
 public:
  /// @param cpus if empty, bind() changes nothing
  explicit CpuSet(const std::vector<int>& cpus);

  /// Binds the calling thread, and processes and threads that it starts, to
  /// these CPUs, with memory from the NUMA node on which each runs.
  /// Async-signal-safe.
  ///
  /// @returns 0, or an errno
  int bind() const;

 private:
  std::vector<unsigned long> bits_;  // in the kernel's format
};

}  // namespace launcher
