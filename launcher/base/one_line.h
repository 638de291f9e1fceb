#pragma once

#include <string>
#include <string_view>

namespace launcher {

/// A text that quotes what somebody gave, on one line: control characters as
/// \n, \t or \x1b.
std::string on_one_line(std::string_view text);

}  // namespace launcher
