#pragma once

#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/job/status/status_report.h"

namespace launcher {

/// Finds the status files of this user's jobs on this machine: in the folders
/// that running ddprun processes hold open, and in the standard places for
/// temporary files, where killed ddprun processes have left theirs.
std::vector<std::string> find_status_files(const Environment& environment);

/// Reads the status files and sorts them by the state of their job.
StatusAnswers read_statuses(const std::vector<std::string>& files);

}  // namespace launcher
