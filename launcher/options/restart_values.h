#pragma once

#include <chrono>
#include <string_view>
#include <vector>

#include "launcher/options/preemption.h"

// Values of the options about restarts and the end of a job. Every function
// throws std::invalid_argument with "expected ..., but got ...".
namespace launcher {

/// Delay before the first restart, and longest delay before any.
struct RestartDelays {
  std::chrono::milliseconds first{0};
  std::chrono::milliseconds longest{0};
};

/// Parses --restart-delay: "2" or "2:60", seconds before the first restart and
/// the maximum.
RestartDelays parse_restart_delays(std::string_view text);
/// Parses exit codes from 1 to 255, separated by commas.
std::vector<int> parse_exit_codes(std::string_view text);
/// Parses --preempt-code: 1 to 255.
int parse_exit_code(std::string_view text);

/// Parses --on-preempt: "USR1" or "SIGUSR1:60", a signal and seconds.
Preemption parse_preemption(std::string_view text);

}  // namespace launcher
