#pragma once

#include <string>
#include <string_view>

// Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// Converts a text to a JSON string with its quotes. UTF-8 stays unchanged. A
/// byte that is not UTF-8 becomes U+FFFD, because JSON readers reject it.
///
/// @param most  maximum size in bytes without the quotes. A longer text is cut
///   at a whole character and ends with "...".
std::string json_string(std::string_view text,
                        size_t most = std::string_view::npos);

}  // namespace ddp::detail
