#pragma once

#include <vector>

namespace launcher {

/// The CPUs that this process may run on, by id; never empty.
std::vector<int> usable_cpus();

/// CPUs for a process. Made before a fork, for the child to bind itself.
class CpuSet {
 public:
  /// @param cpus empty: bind() changes nothing
  explicit CpuSet(const std::vector<int>& cpus);

  /// The calling thread, and what it starts, runs on these CPUs alone, with
  /// memory of the NUMA node that it runs on. Async-signal-safe.
  ///
  /// @returns 0, or an errno
  int bind() const;

 private:
  std::vector<unsigned long> bits_;  // as the kernel has them
};

}  // namespace launcher
