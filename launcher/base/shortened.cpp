#include "launcher/base/shortened.h"

#include "launcher/base/count_text.h"

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

}  // namespace launcher
