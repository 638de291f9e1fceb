#include "launcher/base/one_line.h"

#include <array>
#include <cstdio>

namespace launcher {

std::string on_one_line(std::string_view text) {
  constexpr unsigned char kFirstLetter = 0x20;
  constexpr unsigned char kDelete = 0x7f;
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\t') {
      line += "\\t";
    } else if (byte < kFirstLetter || byte == kDelete) {
      std::array<char, sizeof("\\x1b")> code{};
      std::snprintf(code.data(), code.size(), "\\x%02x", byte);
      line += code.data();
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace launcher
