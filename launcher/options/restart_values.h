#pragma once

#include <chrono>
#include <string_view>
#include <vector>

#include "launcher/options/preemption.h"

// The values of options about restarts and ends. Every function throws
// std::invalid_argument with "expected ..., but got ...".
namespace launcher {

/// How long to wait before the first restart, and at most before any.
struct RestartDelays {
  std::chrono::milliseconds first{0};
  std::chrono::milliseconds longest{0};
};

/// --restart-delay: "2" or "2:60", seconds before the first restart and at
/// most.
RestartDelays parse_restart_delays(std::string_view text);
/// Exit codes from 1 to 255, separated by commas.
std::vector<int> parse_exit_codes(std::string_view text);
/// --on-preempt: "USR1" or "SIGUSR1:60", a signal and seconds.
Preemption parse_preemption(std::string_view text);

}  // namespace launcher
