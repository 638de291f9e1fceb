#include "ddp/base/text/json_string.h"

#include <array>
#include <cstdio>

namespace ddp::detail {
namespace {

constexpr std::string_view kMore = "...";

unsigned byte_of(std::string_view text, size_t index) {
  return static_cast<unsigned char>(text[index]);
}

/// Size in bytes of the first character of a text; 0 if it is not UTF-8.
size_t character_size(std::string_view text) {
  constexpr std::array<unsigned, 4> kLeast{0, 0x80, 0x800, 0x10000};
  const unsigned first = byte_of(text, 0);
  const size_t size = first < 0xc0   ? 1
                      : first < 0xe0 ? 2
                      : first < 0xf0 ? 3
                                     : 4;
  unsigned code = size == 1 ? first : first & (0x7fU >> size);
  for (size_t index = 1; index < size; ++index) {
    if (index == text.size() || (byte_of(text, index) & 0xc0) != 0x80) {
      return 0;
    }
    code = code << 6 | (byte_of(text, index) & 0x3f);
  }
  const bool is_character = size == 1 ? first < 0x80
                                      : first < 0xf8 && code <= 0x10ffff &&
                                            (code < 0xd800 || code > 0xdfff);
  return is_character && code >= kLeast[size - 1] ? size : 0;
}

std::string escaped(std::string_view character) {
  const char c = character.front();
  if (character.size() > 1 || byte_of(character, 0) >= 0x20) {
    return (c == '"' || c == '\\' ? "\\" : "") + std::string(character);
  }
  if (c == '\n') {
    return "\\n";
  }
  std::array<char, 16> code{};
  std::snprintf(code.data(), code.size(), "\\u%04x", byte_of(character, 0));
  return code.data();
}

}  // namespace

std::string json_string(std::string_view text, size_t most) {
  std::string result = "\"";
  size_t end_of_short = 1;  // position where "..." still fits
  while (!text.empty()) {
    const size_t size = character_size(text);
    result += size == 0 ? "\xef\xbf\xbd" : escaped(text.substr(0, size));
    text.remove_prefix(size == 0 ? 1 : size);
    if (result.size() - 1 > most) {
      result.resize(end_of_short);
      result += kMore;
      break;
    }
    if (most >= kMore.size() && result.size() - 1 <= most - kMore.size()) {
      end_of_short = result.size();
    }
  }
  return result + "\"";
}

}  // namespace ddp::detail
