#pragma once

#include <string_view>
#include <vector>

#include "launcher/options/preemption.h"

// Values of the options about restarts and the end of a job. Every function
// throws std::invalid_argument with "expected ..., but got ...".
namespace launcher {

/// Parses exit codes from 1 to 255, separated by commas.
std::vector<int> parse_exit_codes(std::string_view text);
/// Parses --preempt-code: 1 to 255.
int parse_exit_code(std::string_view text);

/// Parses --on-preempt: "USR1" or "SIGUSR1:60", a signal and seconds.
Preemption parse_preemption(std::string_view text);

}  // namespace launcher
