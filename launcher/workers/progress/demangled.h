#pragma once

#include <string>
#include <string_view>

namespace launcher {

/// Pure: a text with the C++ names in it as their program has them.
std::string demangled(std::string_view text);

}  // namespace launcher
