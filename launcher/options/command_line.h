#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/options/help_text.h"
#include "launcher/options/values.h"

namespace launcher {

/// Text of --help or --version for stdout; nothing is launched.
struct Information {
  std::string text;
};

/// A command line in torchrun's style: options in both spellings (--a-b and
/// --a_b), complete or abbreviated, with a default from the environment
/// variable PET_A_B, then a program with its own arguments. Only this unit uses
/// the parsing library.
class CommandLine {
 public:
  /// Receives the text of a value; throws std::invalid_argument if it is
  /// invalid.
  using Setter = std::function<void(const std::string&)>;

  CommandLine();
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Starts a group: options added next appear under this title in --help.
  void group(const std::string& title);

  /// Adds an option with a value. If it is repeated, the last value wins. An
  /// invalid value becomes a UsageError that names the option.
  void value(const std::string& name,
             const std::string& type,
             const std::string& help,
             const Setter& set,
             const std::string& short_name = "");

  /// Adds an option without a value; `set` is called if it is on. Its variable
  /// is an integer, as in torchrun: 0 is off.
  void toggle(const std::string& name,
              const std::string& help,
              const std::function<void()>& set,
              const std::string& short_name = "");

  /// Parses the arguments and calls the setters, in the order of --help.
  /// Returns the program and its
  /// arguments: all arguments from the first that is not an option of ddprun.
  ///
  /// @param arguments without the program's name
  /// @param environment with the defaults of options that are not given
  /// @throws UsageError with one line that names the option
  std::variant<std::vector<std::string>, Information> parse(
      std::vector<std::string> arguments, const Environment& environment);

  /// Returns all options in the order of --help. Use instead of parse().
  std::vector<OptionGroup> describe();

  /// Returns a line for each variable PET_... that belongs to no option, with
  /// the most similar option.
  std::vector<std::string> unknown_variables(
      const Environment& environment) const;

  /// Returns " (did you mean --NAME?)" for an unknown option; empty if no
  /// option is similar.
  std::string suggestion_for(const std::string& argument) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Setters, and the texts of types.

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
