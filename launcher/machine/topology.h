#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace launcher {

/// A CPU, as the kernel counts them, and what it shares with others. Two CPUs
/// have the same core (socket, ...) where these numbers are the same.
struct Cpu {
  int id = 0;
  int core = 0;  ///< the first of the hardware threads of a core
  int cache =
      0;  ///< the first of those that share the last cache: a core complex
  int node = 0;  ///< NUMA node
  int socket = 0;
};

/// The CPUs that this process may use, and where GPUs are. Data, so that
/// workers can be bound on any machine.
struct Topology {
  std::vector<Cpu> cpus;  ///< by id
  std::vector<int>
      gpu_nodes;  ///< NUMA node by GPU, in PCI order; -1: not known
};

/// Reads the machine. What /sys does not say (another kernel, a sandbox) counts
/// as not shared for cores and as shared by all for the rest.
///
/// @param cpus those that may be used, by id
/// @param root before /sys and /proc: for tests
Topology read_topology(const std::vector<int>& cpus,
                       const std::string& root = "");

/// The kernel's lists of CPUs: "0-3,8" is 0, 1, 2, 3, 8. Empty for any other
/// text.
std::vector<int> parse_cpu_list(std::string_view text);

/// The other way round.
std::string cpu_list(const std::vector<int>& cpus);

}  // namespace launcher
