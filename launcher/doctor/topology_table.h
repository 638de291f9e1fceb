#pragma once

#include <string>

#include "launcher/doctor/machine.h"

namespace launcher {

/// Formats the GPUs, the links between them, and the nearest CPUs and NUMA node
/// of each, like `nvidia-smi topo -m`, with a legend. Empty without GPUs.
std::string topology_table(const GpuFacts& facts);

}  // namespace launcher
