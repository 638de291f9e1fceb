#pragma once

#include <string_view>

#include "launcher/doctor/machine.h"
#include "launcher/machine/host.h"

namespace launcher {

/// Reads limits and sizes. Makes and removes a cgroup and a file, to see
/// whether it may.
SystemFacts probe_system(const HostInfo& host, const Environment& environment);

/// Bytes of a line "MemAvailable:   2048 kB" in the text of /proc/meminfo; 0
/// where there is none. Pure.
int64_t meminfo_bytes(std::string_view text, std::string_view name);

}  // namespace launcher
