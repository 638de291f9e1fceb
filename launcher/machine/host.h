#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "launcher/machine/topology.h"

namespace launcher {

/// What this machine has. Data, so that plans can be made for any machine.
struct HostInfo {
  std::string name;
  int cpu_count = 1;  ///< that this process may use: affinity and cgroup quota
  int gpu_count = 0;  ///< that the CUDA driver would count, ids 0 to count-1
  /// Descriptors that ddprun may open: the hard limit.
  uint64_t most_files = std::numeric_limits<uint64_t>::max();
  /// Another job of its terminal is in the foreground, as behind a shell's `&`.
  bool is_in_background = false;
  Topology topology{};  ///< where workers are to be bound; else empty
};

/// Reads the machine: the only place that does, with read_topology(). Loads no
/// CUDA.
HostInfo probe_host();

/// CPUs that a cgroup quota allows, rounded up; `fallback` when it allows all.
///
/// @param cpu_max the text of a cgroup v2 cpu.max: "200000 100000", "max
/// 100000"
int cpus_of_quota(std::string_view cpu_max, int fallback);

}  // namespace launcher
