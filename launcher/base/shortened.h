#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace launcher {

/// Shortens a text to about `most` bytes. Keeps the beginning and the end,
/// which often holds advice, and states between them how many bytes are left
/// out. Does not cut short words, and never cuts UTF-8 characters.
std::string shortened(std::string_view text, size_t most);

}  // namespace launcher
