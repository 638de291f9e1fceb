#pragma once

#include <string>
#include <string_view>

namespace launcher {

/// Returns the text with its mangled C++ names demangled. Pure function.
std::string demangled(std::string_view text);

}  // namespace launcher
