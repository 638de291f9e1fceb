#pragma once

#include <string>
#include <string_view>

namespace launcher {

/// Returns the text on one line: control characters become \n, \t or \x1b. For
/// messages that quote foreign text.
std::string on_one_line(std::string_view text);

}  // namespace launcher
