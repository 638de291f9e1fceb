#pragma once

#include <string>
#include <string_view>

namespace launcher {

/// Returns "SIGTERM" for 15; "signal 40" for a number without a name.
std::string signal_name(int number);

/// Returns 15 for "SIGTERM" or "TERM"; 0 for an unknown name.
int signal_number(std::string_view name);

}  // namespace launcher
