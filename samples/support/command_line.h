#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace samples {

/// Text to print before the program exits: help, or an error.
struct EarlyExit {
  int code;
  std::string text;

  /// Prints help to standard output, or an error to standard error. Returns the
  /// code.
  int print() const;
};

/// The command line of a sample. Only the .cpp file includes CLI11, which is
/// slow to compile.
///
/// Example:
/// @code
///   samples::CommandLine line("hello", "Says hello.");
///   line.add("--times", options.times, "How often").at_least(1);
///   return line.run(argc, argv, [&] { hello(options); });
/// @endcode
class CommandLine {
 public:
  /// Restrictions of an option's values. Bounds apply to each number of a list.
  class Option {
   public:
    explicit Option(CLI::Option& option) : option_(option) {}
    Option& at_least(double least);
    Option& between(double least, double most);
    Option& above_zero();
    Option& one_of(const std::vector<std::string>& names);
    Option& count(int values);
    Option& needs(const std::string& flag);
    Option& excludes(const std::string& flag);

   private:
    Option& check(std::function<bool(double)> holds, const std::string& what);

    CLI::Option& option_;
  };

  CommandLine(const std::string& name, const std::string& description);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Adds an option that sets `target`. A bool is a flag. Other targets are a
  /// number or a text, a std::optional of them, or a comma-separated list. The
  /// initial value of `target` is the default that the help shows.
  template <typename T>
  Option add(const std::string& flag, T& target, const std::string& help);

  /// Adds an option with the names of `kinds` as values.
  template <typename Target, typename Kind>
  Option choose(const std::string& flag,
                Target& target,
                const std::map<std::string, Kind>& kinds,
                const std::string& help) {
    std::vector<std::string> names;
    for (const auto& [name, kind] : kinds) {
      names.push_back(name);
    }
    return add_names(
        flag,
        names,
        [&target, &kinds](const std::string& name) { target = kinds.at(name); },
        help);
  }

  /// Parses the options. Returns std::nullopt if the program must run.
  std::optional<EarlyExit> parse(int argc, const char* const* argv);

  /// Returns an error about the command line: one line, with exit code 2.
  EarlyExit refuse(const std::string& what) const;

  /// Calls `parse`, then `body` in `ddp::record_errors`. Returns the exit code.
  int run(int argc, const char* const* argv, const std::function<void()>& body);

 private:
  Option add_names(const std::string& flag,
                   const std::vector<std::string>& names,
                   const std::function<void(const std::string&)>& set,
                   const std::string& help);

  std::unique_ptr<CLI::App> app_;
};

}  // namespace samples
