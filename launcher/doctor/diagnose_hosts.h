#pragma once

#include <string>

#include "launcher/doctor/finding.h"
#include "launcher/doctor/paths/hosts_facts.h"

namespace launcher {

/// Judges hosts and the paths between them. Pure.
Findings diagnose_hosts(const HostsFacts& facts);

/// Row by row, what each host has of a connection to each other one: the round
/// trip and the bandwidth, or what is wrong; with a legend. Empty where not all
/// is known, and for one host or more than 24.
std::string path_table(const HostsFacts& facts);

/// "refused", "timed out": one word or two for a fault.
std::string fault_text(PathFault fault);

}  // namespace launcher
