#pragma once

#include <string_view>

#include "launcher/doctor/machine.h"
#include "launcher/machine/host.h"

namespace launcher {

/// Reads limits and sizes. Creates and removes a cgroup and a file, to test the
/// permissions.
SystemFacts probe_system(const HostInfo& host, const Environment& environment);

/// Returns the bytes of a line "MemAvailable:   2048 kB" in the text of
/// /proc/meminfo; 0 if there is none. Pure function.
int64_t meminfo_bytes(std::string_view text, std::string_view name);

/// Returns the bytes of files in the memory of a cgroup and of those below it,
/// from the text of its memory.stat. The kernel frees them for a program that
/// needs memory. Pure function.
int64_t file_bytes(std::string_view memory_stat);

}  // namespace launcher
