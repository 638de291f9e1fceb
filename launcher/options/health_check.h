#pragma once

#include <chrono>
#include <string>

namespace launcher {

/// --health-check: a command that says whether a host may take part. It runs
/// before every world, see JoinSteps.
struct HealthCheck {
  std::string command;
  std::chrono::milliseconds limit{60'000};  ///< of its time
};

}  // namespace launcher
