#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/health/command.h"

namespace launcher {

/// --health-check: a command that says whether a host may take part. It runs
/// before every world, see JoinSteps.
struct HealthCheck {
  std::string command;
  std::chrono::milliseconds limit{60'000};  ///< of its time
};

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
