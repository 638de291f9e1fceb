#include "ddp/base/text/json_string.h"

#include <array>
#include <cstdio>

namespace ddp::detail {
namespace {

constexpr std::string_view kMore = "...";

unsigned byte_of(std::string_view text, size_t index) {
  return static_cast<unsigned char>(text[index]);
}

size_t size_by_first_byte(unsigned first) {
  if (first < 0x80) {
    return 1;
  }
  if (first < 0xc2 || first > 0xf4) {
    return 0;
  }
  return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/// Overlong encodings, UTF-16 surrogates, and values beyond Unicode.
bool is_forbidden(unsigned first, unsigned second) {
  return (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
         (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
}

/// Size in bytes of the first character of a text; 0 if it is not UTF-8.
size_t character_size(std::string_view text) {
  const size_t size = size_by_first_byte(byte_of(text, 0));
  if (size == 0 || size > text.size()) {
    return 0;
  }
  for (size_t index = 1; index < size; ++index) {
    if ((byte_of(text, index) & 0xc0) != 0x80) {
      return 0;
    }
  }
  return size > 1 && is_forbidden(byte_of(text, 0), byte_of(text, 1)) ? 0
                                                                      : size;
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
