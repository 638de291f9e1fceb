#pragma once

#include <string>

#include "launcher/job/status/job_status.h"

namespace launcher {

/// The status for people, less than a screen: a line on the job, where its
/// files are, and a line for each worker. Of many workers the first twenty:
/// those that do not run, then those that have reported nothing for longest.
/// Pure.
std::string status_text(const JobStatus& status);

/// "2.5 s", "3 min 20 s", "2 h 5 min", "3 d 4 h".
std::string duration_text(std::chrono::milliseconds time);

}  // namespace launcher
