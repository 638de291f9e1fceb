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

/// Formats the findings as JSON, for programs:
/// - `version` 1, `exit_code` of ddprun
/// - `findings`: for each `severity` (ok, warning, error), `subject`, `text`,
///   `fix` (null: none needed)
/// - `gpus`: for each `name`, `uuid`, `pci`, `memory_bytes`, `numa_node` (null:
///   unknown), `cpus`, `links` (to each GPU by number; null: itself)
/// - `driver`, and `driver_cuda` as "13.0"; null if there is none
/// - `libtorch`, `cuda`, `nccl`: versions; null if unknown
/// - `all_reduce`: null, or `backend`, `ranks`, `bytes`, `seconds`,
///   `bus_bytes_per_second`
std::string doctor_json(const MachineFacts& machine, const Findings& findings);

}  // namespace launcher
