#pragma once

#include <string>

#include "launcher/job/report/report.h"

// Report texts about a hang. Pure functions.
namespace launcher {

/// Returns "rank 1 hangs: no progress for 12.3 s (--hang-timeout is 10.0 s)",
/// or "ranks 1, 3 hang: ...".
std::string headline(const Hang& hang);

/// Returns the whole report: hung workers and their quiet time, the last report
/// of each rank, available stacks, and how the workers ended.
std::string hang_report(const AttemptResult& result, const Hang& hang);

}  // namespace launcher
