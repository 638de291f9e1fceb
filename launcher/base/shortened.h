#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace launcher {

/// A text of about `most` bytes: of a longer one the beginning, how much was
/// left out, and the end, where advice mostly stands. Words stay whole where
/// they are short, characters of UTF-8 always.
std::string shortened(std::string_view text, size_t most);

}  // namespace launcher
