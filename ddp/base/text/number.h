#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

// Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// The number that the whole text is: decimal, without a plus sign or spaces.
/// Nothing for any other text, and for what T does not hold.
///
/// @param base at most one, of an integer
template <typename T, typename... Base>
std::optional<T> parse_number(std::string_view text, Base... base) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value, base...);
  return result.ec == std::errc() && result.ptr == end ? std::optional<T>(value)
                                                       : std::nullopt;
}

}  // namespace ddp::detail
