#pragma once

#include <string>

#include "launcher/doctor/finding.h"
#include "launcher/doctor/paths/hosts_facts.h"

namespace launcher {

/// Judges the hosts and the paths between them. Pure function.
Findings diagnose_hosts(const HostsFacts& facts);

/// Returns a table of the connections between all hosts: the round trip and the
/// bandwidth, or the fault; with a legend. Empty if measurements are missing,
/// for a single host, and for more than 24 hosts.
std::string path_table(const HostsFacts& facts);

/// Returns a fault in one or two words: "refused", "timed out".
std::string fault_text(PathFault fault);

}  // namespace launcher
