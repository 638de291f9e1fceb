#pragma once

#include <chrono>
#include <string>

namespace launcher {

/// How long something is waited for, for people: "60 s", or "500 ms" where it
/// is no whole number of seconds.
std::string patience_text(std::chrono::milliseconds time);

}  // namespace launcher
