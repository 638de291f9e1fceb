#pragma once

#include <string>
#include <string_view>
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

/// A CPU with the kernel's number, and the resources that it shares. Two CPUs
/// share a core (cache, node, socket) if these numbers are equal.
struct Cpu {
  int id = 0;
  int core = 0;   ///< first hardware thread of its core
  int cache = 0;  ///< first CPU that shares its last-level cache
  int node = 0;   ///< NUMA node
  int socket = 0;
};

/// CPUs that this process may use, and NUMA nodes of the GPUs. Plain data, so
/// that binding can be planned for any machine.
struct Topology {
  std::vector<Cpu> cpus;       ///< by id
  std::vector<int> gpu_nodes;  ///< NUMA node by GPU, in PCI order; -1: unknown
};

/// Reads the machine's topology. If /sys lacks information (another kernel, a
/// sandbox), cores count as not shared, and caches, nodes and sockets as shared
/// by all CPUs.
///
/// @param cpus ids of the usable CPUs
/// @param root prefix of /sys and /proc, for tests
Topology read_topology(const std::vector<int>& cpus,
                       const std::string& root = "");

/// Parses the kernel's CPU list format: "0-3,8" is 0, 1, 2, 3, 8. Returns an
/// empty list for any other text.
std::vector<int> parse_cpu_list(std::string_view text);

/// Formats a CPU list in the kernel's format.
std::string cpu_list(const std::vector<int>& cpus);

}  // namespace launcher
