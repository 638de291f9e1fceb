#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

// Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// Returns the number if the whole text is a decimal number without a plus sign
/// or spaces. Returns std::nullopt for any other text and for values that T
/// cannot hold.
///
/// @param base  optional base of an integer, at most one argument.
template <typename T, typename... Base>
std::optional<T> parse_number(std::string_view text, Base... base) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value, base...);
  return result.ec == std::errc() && result.ptr == end ? std::optional<T>(value)
                                                       : std::nullopt;
}

}  // namespace ddp::detail
