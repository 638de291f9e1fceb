#include "launcher/base/text.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace launcher {
namespace {

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

/// Returns the last start of a character at or before `at`. Text that is not
/// UTF-8 is cut anywhere.
size_t character_at(std::string_view text, size_t at) {
  constexpr size_t kMostContinuations = 3;
  if (at >= text.size()) {
    return text.size();
  }
  for (size_t back = 0; back <= kMostContinuations && back <= at; ++back) {
    if (!continues_character(text[at - back])) {
      return at - back;
    }
  }
  return at;
}

constexpr size_t kShortWord = 40;

/// Returns the start of the word that contains `at`, if the word is short.
size_t word_before(std::string_view text, size_t at) {
  const size_t space = text.rfind(' ', at);
  return space != std::string_view::npos && at - space < kShortWord
             ? space
             : character_at(text, at);
}

/// Returns the start of the next word, if it is near.
size_t word_after(std::string_view text, size_t at) {
  const size_t space = text.find(' ', at);
  return space != std::string_view::npos && space - at < kShortWord
             ? space + 1
             : character_at(text, at);
}

}  // namespace

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

std::string shortened(std::string_view text, size_t most) {
  if (text.size() <= most) {
    return std::string(text);
  }
  const size_t begin = word_before(text, most - most / 3);
  const size_t end = word_after(text, text.size() - most / 3);
  return std::string(text.substr(0, begin)) + " [... " +
         count_text(static_cast<int64_t>(end - begin), "byte") + " ...] " +
         std::string(text.substr(end));
}

std::string count_text(int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string patience_text(std::chrono::milliseconds time) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(time);
  return whole == time ? std::to_string(whole.count()) + " s"
                       : std::to_string(time.count()) + " ms";
}

std::string elapsed_text(std::chrono::milliseconds time) {
  std::array<char, 32> text;
  std::snprintf(text.data(),
                text.size(),
                "%.1f s",
                static_cast<double>(time.count()) / 1000);
  return text.data();
}

std::string text_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      line += row[column];
      line.append(widths[column] + 2 - row[column].size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace launcher
