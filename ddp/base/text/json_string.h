#pragma once

#include <string>
#include <string_view>

// Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// A text as a string of JSON, with its quotes. UTF-8 stays as it is; a byte
/// that is none becomes U+FFFD, since readers refuse it.
///
/// @param most bytes of the result beside the quotes; of a longer text the
///   beginning and "..." are kept, in whole characters
std::string json_string(std::string_view text,
                        size_t most = std::string_view::npos);

}  // namespace ddp::detail
