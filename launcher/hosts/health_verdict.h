#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/machine/run_and_capture.h"
#include "launcher/options/health_check.h"

namespace launcher {

/// Result of a health check.
struct HealthVerdict {
  std::vector<std::string> notes;      ///< last lines of its output
  std::optional<std::string> failure;  ///< nothing: the host may take part
};

/// Judges the end of the command of --health-check. Pure.
///
/// @param end  nothing: the command could not be run
HealthVerdict judge_health(const HealthCheck& check,
                           const std::optional<CommandEnd>& end,
                           const std::string& host);

}  // namespace launcher
