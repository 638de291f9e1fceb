#pragma once

#include <cstddef>
#include <limits>
#include <string>

namespace launcher {

/// Returns the text of a file of /proc or /sys, or its first `most` bytes;
/// empty if the file cannot be read.
std::string read_text(const std::string& path,
                      size_t most = std::numeric_limits<size_t>::max());

}  // namespace launcher
