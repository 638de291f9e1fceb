#pragma once

#include <string>

#include "launcher/job/report/report.h"

namespace launcher {

/// Returns the whole report: hung workers and their quiet time, the last report
/// of each rank, and how the workers ended.
std::string hang_report(const AttemptResult& result, const Hang& hang);

}  // namespace launcher
