#pragma once

#include <string>

#include "launcher/doctor/machine.h"

namespace launcher {

/// "NV18", "PIX", "SYS": as `nvidia-smi topo -m` writes them.
std::string link_text(const GpuLink& link);

/// The GPUs, what lies between them, and the CPUs and the NUMA node near each,
/// as `nvidia-smi topo -m` shows them, with a legend; empty without GPUs.
std::string topology_table(const GpuFacts& facts);

}  // namespace launcher
