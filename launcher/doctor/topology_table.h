#pragma once

#include <string>

#include "launcher/doctor/machine.h"

namespace launcher {

/// Returns "NV18", "PIX" or "SYS", as `nvidia-smi topo -m` does.
std::string link_text(const GpuLink& link);

/// Formats the GPUs, the links between them, and the nearest CPUs and NUMA node
/// of each, like `nvidia-smi topo -m`, with a legend. Empty without GPUs.
std::string topology_table(const GpuFacts& facts);

}  // namespace launcher
