#pragma once

#include <string>

#include "launcher/doctor/finding.h"
#include "launcher/doctor/machine.h"

namespace launcher {

/// A line for each finding: "ok", "warning" or "error", what it is about, what
/// was found, and what to do; then the table of GPUs, where there are some.
std::string doctor_text(const MachineFacts& machine, const Findings& findings);

/// The same as JSON, for programs:
/// - `version` 1, `exit_code` as ddprun's
/// - `findings`: of each `severity` (ok, warning, error), `subject`, `text`,
///   `fix` (null: nothing to do)
/// - `gpus`: of each `name`, `uuid`, `pci`, `memory_bytes`, `numa_node` (null:
///   not known), `cpus`, `links` (to each GPU by number; null: itself)
/// - `driver`, and `driver_cuda` as "13.0"; null without
/// - `libtorch`, `cuda`, `nccl`: versions; null where not known
/// - `all_reduce`: null, or `backend`, `ranks`, `bytes`, `seconds`,
///   `bus_bytes_per_second`
/// - `hosts`: null for one, or where they have not met; else `place`,
/// `expected`
///   (how many), `own` (the number of this one), `hosts` (of each `name`,
///   `address`, `node_rank` or null), `lost` (names), `has_all_ways` (false:
///   those from this host) and `ways`: of each `from` and `to` (numbers in
///   `hosts`), `fault` (null: it connects), `round_trip_seconds`,
///   `bytes_per_second` (null: not measured)
std::string doctor_json(const MachineFacts& machine, const Findings& findings);

}  // namespace launcher
