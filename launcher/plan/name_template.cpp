#include "launcher/plan/name_template.h"

#include <algorithm>

namespace launcher {
namespace {

bool begins_name(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool continues_name(char c) {
  return begins_name(c) || (c >= '0' && c <= '9');
}

/// Returns the name at the beginning of the text; empty if there is none.
std::string_view leading_name(std::string_view text) {
  if (text.empty() || !begins_name(text.front())) {
    return {};
  }
  const auto* end = std::find_if_not(text.begin(), text.end(), continues_name);
  return text.substr(0, static_cast<size_t>(end - text.begin()));
}

}  // namespace

NameTemplate::NameTemplate(std::string_view pattern) {
  while (!pattern.empty()) {
    const size_t dollar = std::min(pattern.find('$'), pattern.size());
    add_text(pattern.substr(0, dollar));
    pattern.remove_prefix(dollar);
    if (pattern.empty()) {
      return;
    }
    const bool is_braced = pattern.substr(1, 1) == "{";
    const auto name = leading_name(pattern.substr(is_braced ? 2 : 1));
    const size_t size = name.size() + (is_braced ? 3 : 1);
    const bool is_closed = !is_braced || pattern.substr(size - 1, 1) == "}";
    if (!name.empty() && is_closed) {
      pieces_.push_back(
          {std::string(pattern.substr(0, size)), std::string(name)});
      pattern.remove_prefix(size);
    } else {
      add_text("$");
      pattern.remove_prefix(pattern.substr(1, 1) == "$" ? 2 : 1);
    }
  }
}

void NameTemplate::add_text(std::string_view text) {
  if (!text.empty()) {
    pieces_.push_back({std::string(text), ""});
  }
}

std::string NameTemplate::filled(const Values& values) const {
  std::string result;
  for (const Piece& piece : pieces_) {
    const auto value =
        piece.name.empty() ? values.end() : values.find(piece.name);
    result += value == values.end() ? piece.text : value->second;
  }
  return result;
}

}  // namespace launcher
