#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace launcher {

/// A text of at most about `most` bytes: of a longer one the beginning, how
/// much was left out, and the end, where advice mostly stands. A character of
/// UTF-8 stays whole.
std::string shortened(std::string_view text, size_t most);

}  // namespace launcher
