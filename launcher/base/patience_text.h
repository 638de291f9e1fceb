#pragma once

#include <chrono>
#include <string>

namespace launcher {

/// Formats a time-out: "60 s", or "500 ms" if it is not a whole number of
/// seconds.
std::string patience_text(std::chrono::milliseconds time);

}  // namespace launcher
