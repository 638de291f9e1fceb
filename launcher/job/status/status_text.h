#pragma once

#include <string>

#include "launcher/job/status/job_status.h"

namespace launcher {

/// Returns the status for people, less than a screen: a line for the job, its
/// folders, and a line for each worker. Shows at most twenty workers: first
/// those that are not running, then by the time since their last report. Pure
/// function.
std::string status_text(const JobStatus& status);

/// Formats a time: "2.5 s", "3 min 20 s", "2 h 5 min", "3 d 4 h".
std::string duration_text(std::chrono::milliseconds time);

}  // namespace launcher
