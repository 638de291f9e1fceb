#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/machine/run_and_capture.h"
#include "launcher/options/health_check.h"

namespace launcher {

/// What to tell of a check.
struct HealthVerdict {
  std::vector<std::string> notes;      ///< the last lines that it wrote
  std::optional<std::string> failure;  ///< nothing: the host is fit
};

/// Pure.
///
/// @param end nothing: the command could not be run
HealthVerdict judge_health(const HealthCheck& check,
                           const std::optional<CommandEnd>& end,
                           const std::string& host);

}  // namespace launcher
