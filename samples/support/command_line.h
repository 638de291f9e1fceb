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

/// The program is to print this and to exit: help, or what is wrong.
struct EarlyExit {
  int code;
  std::string text;

  /// Prints help on standard output, an error on standard error; returns the
  /// code.
  int print() const;
};

/// A sample's command line. CLI11, which takes long to compile, is in its .cpp
/// alone.
///
/// Example:
/// @code
///   samples::CommandLine line("hello", "Says hello.");
///   line.add("--times", options.times, "How often").at_least(1);
///   return line.run(argc, argv, [&] { hello(options); });
/// @endcode
class CommandLine {
 public:
  /// What an option may be. Bounds are those of each number of a list.
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

  /// An option for `target`: a bool is a flag; else a number or a text, also in
  /// a std::optional, or a list of them, with commas. What `target` holds is
  /// the default that the help shows.
  template <typename T>
  Option add(const std::string& flag, T& target, const std::string& help);

  /// An option that takes one of the names.
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

  /// Reads the options: nothing when the program is to run.
  std::optional<EarlyExit> parse(int argc, const char* const* argv);

  /// What is wrong with the command line: one line and code 2.
  EarlyExit refuse(const std::string& what) const;

  /// `parse`, then `run_program`.
  int run(int argc, const char* const* argv, const std::function<void()>& body);

 private:
  Option add_names(const std::string& flag,
                   const std::vector<std::string>& names,
                   const std::function<void(const std::string&)>& set,
                   const std::string& help);

  std::unique_ptr<CLI::App> app_;
};

/// Runs `body` and turns an exception into one line on standard error,
/// "NAME (rank R): what happened", and exit code 1. The body leaves the process
/// group itself: after an error the others are told by this process's end.
int run_program(const std::string& name, const std::function<void()>& body);

}  // namespace samples
