#pragma once

#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/job/status/status_report.h"

namespace launcher {

/// The status files of this user's jobs on this machine: of every ddprun that
/// runs, wherever its folder is, and in the places of temporary files, where
/// killed ones have left theirs.
std::vector<std::string> find_status_files(const Environment& environment);

/// Reads all of them.
StatusAnswers read_statuses(const std::vector<std::string>& files);

}  // namespace launcher
