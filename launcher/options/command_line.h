#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/options/man_page.h"

namespace launcher {

/// --help or --version: text for stdout, and nothing to launch.
struct Information {
  std::string text;
};

/// A command line in torchrun's manner: options in both spellings (--a-b and
/// --a_b), written whole or cut short, with a default from the environment
/// variable PET_A_B, then a program with its own arguments. The only unit that
/// knows the parsing library, but for the form of its help.
class CommandLine {
 public:
  /// Takes the text of a value; throws std::invalid_argument when it is wrong.
  using Setter = std::function<void(const std::string&)>;

  CommandLine();
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// The options that follow stand under this title in --help.
  void group(const std::string& title);

  /// An option with a value, of which the last one wins. A wrong one becomes a
  /// UsageError that names the option.
  void value(const std::string& name,
             const std::string& type,
             const std::string& help,
             const Setter& set,
             const std::string& short_name = "");

  /// An option that can be given several times: `add` gets each value.
  void values(const std::string& name,
              const std::string& type,
              const std::string& help,
              const Setter& add);

  /// An option without a value; `set` is called when it is on. Its variable is
  /// an integer, as torchrun reads it: 0 is off.
  void toggle(const std::string& name,
              const std::string& help,
              const std::function<void()>& set,
              const std::string& short_name = "");

  /// Calls the setters. What it returns is the program and its arguments: all
  /// from the first argument on that is no option of ours.
  ///
  /// @param arguments without the program's name
  /// @param environment with the defaults of options that are not given
  /// @throws UsageError with one line that names the option
  std::variant<std::vector<std::string>, Information> parse(
      std::vector<std::string> arguments, const Environment& environment);

  /// All options, in the order of --help: instead of parse().
  std::vector<OptionGroup> describe();

  /// A line for each variable PET_... that belongs to no option, with the one
  /// that was probably meant.
  std::vector<std::string> unknown_variables(
      const Environment& environment) const;

  /// " (did you mean --NAME?)" for what is no option, or nothing.
  std::string suggestion_for(const std::string& argument) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace launcher
