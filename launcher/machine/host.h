#pragma once

#include <string>
#include <string_view>

#include "launcher/machine/topology.h"

namespace launcher {

/// Properties of a machine. Plain data, so that plans can be made for any
/// machine.
struct HostInfo {
  std::string name;
  int cpu_count = 1;     ///< usable CPUs: affinity and cgroup quota
  int machine_cpus = 1;  ///< all CPUs of the machine
  int gpu_count = 0;     ///< as counted by CUDA: ids 0 to count - 1
  /// Whether ddprun runs in the background of its terminal, as after a shell's
  /// `&`.
  bool is_in_background = false;
  bool has_loopback = true;  ///< 127.0.0.1 can be reached
  Topology topology{};       ///< for binding of workers; empty without
};

/// Reads the machine's properties. Only this function and read_topology() read
/// the machine. Does not load CUDA.
HostInfo probe_host();

/// Returns the number of CPUs that a cgroup quota allows, rounded up;
/// `fallback` if there is no limit.
///
/// @param cpu_max text of a cgroup v2 cpu.max: "200000 100000", "max 100000"
int cpus_of_quota(std::string_view cpu_max, int fallback);

}  // namespace launcher
