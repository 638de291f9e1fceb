#pragma once

#include <string>

#include "launcher/job/report/report.h"

namespace launcher {

/// Pure: returns the last line of a report, which names the next step, for
/// example "  next: ddprun --doctor ...\n". Empty if no step fits the failure.
std::string next_step(const AttemptResult& result);

}  // namespace launcher
