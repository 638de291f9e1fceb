#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/options/command_line.h"
#include "launcher/options/values.h"

// Conversions from the text of an option to the value of a variable.
namespace launcher {

/// Returns a setter that stores the result of `parse` in `target`, which must
/// outlive the command line.
template <typename T, typename Parse>
CommandLine::Setter into(T& target, Parse parse) {
  return [&target, parse](const std::string& text) { target = parse(text); };
}

/// Returns the type text of a value with these choices: "a|b".
inline std::string one_of(const std::vector<std::string>& choices) {
  std::string type;
  for (const std::string& choice : choices) {
    type += (type.empty() ? "" : "|") + choice;
  }
  return type;
}

inline std::string as_text(const std::string& text) {
  return std::string(stripped(text));
}

inline std::function<int(const std::string&)> integer(int least, int most) {
  return
      [=](const std::string& text) { return parse_integer(text, least, most); };
}

}  // namespace launcher
