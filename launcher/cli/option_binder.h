#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace launcher {

/// Adds options to a command line in torchrun's manner: both spellings
/// (--a-b and --a_b), a default from the environment variable PET_A_B, and the
/// last of several wins.
class OptionBinder {
 public:
  /// Takes the text of a value; throws std::invalid_argument when it is wrong.
  using Setter = std::function<void(const std::string&)>;

  explicit OptionBinder(CLI::App& app) : app_(app) {}

  /// An option with a value. A wrong one becomes a UsageError that names it.
  CLI::Option* value(const std::string& name,
                     const std::string& type,
                     const std::string& help,
                     const Setter& set,
                     const std::string& short_name = "") const;

  /// An option without a value; `set` is called when it is on.
  void toggle(const std::string& name,
              const std::string& help,
              const std::function<void()>& set,
              const std::string& short_name = "") const;

 private:
  CLI::App& app_;
};

}  // namespace launcher
