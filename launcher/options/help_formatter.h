#pragma once

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>

#include "launcher/options/help_text.h"

namespace launcher {

/// Formats ddprun --help in lines of 80 columns.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kNameColumns); }

  std::string make_usage(const CLI::App*, std::string) const override {
    return std::string("\nUsage:\n  ") + kUsage + "\nExamples:\n" + kExamples;
  }
  std::string make_option_name(const CLI::Option* option, bool) const override {
    std::string short_name;
    for (const auto& name : option->get_snames()) {
      short_name += "-" + name + ", ";
    }
    return short_name + "--" + option->get_lnames().front();
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();
    return type.empty() ? "" : " " + type;
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::istringstream words(option->get_description());
    std::string text;
    size_t column = 0;
    for (std::string word; words >> word; column += word.size() + 1) {
      const bool wraps = column + word.size() > 79 - kNameColumns;
      text += wraps ? "\n" : column == 0 ? "" : " ";
      text += word;
      column = wraps ? 0 : column;
    }
    return text;
  }

 private:
  static constexpr size_t kNameColumns = 32;
};

/// Removes the second empty line that CLI11 leaves between groups.
inline std::string with_single_gaps(std::string text) {
  for (size_t at; (at = text.find("\n\n\n")) != std::string::npos;) {
    text.erase(at, 1);
  }
  return text;
}

}  // namespace launcher
