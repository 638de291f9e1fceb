#pragma once

#include <chrono>
#include <string>

namespace launcher {

/// --health-check: a command that decides whether a host may take part. It runs
/// before every world, see JoinSteps.
struct HealthCheck {
  std::string command;
  std::chrono::milliseconds limit{60'000};  ///< time limit of the command
};

}  // namespace launcher
