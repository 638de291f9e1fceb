#pragma once

#include <string>

#include "launcher/doctor/finding.h"
#include "launcher/doctor/machine.h"

namespace launcher {

/// Formats the GPUs, the links between them, and the nearest CPUs and NUMA node
/// of each, like `nvidia-smi topo -m`, with a legend. Empty without GPUs.
std::string topology_table(const GpuFacts& facts);

/// Formats a line for each finding: "ok", "warning" or "error", its subject,
/// text and fix; then the table of GPUs, if any.
std::string doctor_text(const MachineFacts& machine, const Findings& findings);

}  // namespace launcher
