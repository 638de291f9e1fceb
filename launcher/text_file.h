#pragma once

#include <string>

namespace launcher {

/// Whole text of a file of /proc or /sys; empty when it cannot be read.
std::string read_text(const std::string& path);

}  // namespace launcher
