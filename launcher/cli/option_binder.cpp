#include "launcher/cli/option_binder.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <stdexcept>

#include "launcher/error.h"

namespace launcher {
namespace {

std::string spellings(const std::string& name, const std::string& short_name) {
  std::string underscored = name;
  std::replace(underscored.begin(), underscored.end(), '-', '_');
  std::string result = short_name.empty() ? "" : "-" + short_name + ",";
  result += "--" + name;
  return underscored == name ? result : result + ",--" + underscored;
}

std::string variable(const std::string& name) {
  std::string result = "PET_";
  for (const char c : name) {
    result += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  }
  return result;
}

}  // namespace

CLI::Option* OptionBinder::value(const std::string& name,
                                 const std::string& type,
                                 const std::string& help,
                                 const Setter& set,
                                 const std::string& short_name) const {
  const auto checked = [name, set](const std::string& text) {
    try {
      set(text);
    } catch (const std::invalid_argument& error) {
      throw UsageError("--" + name + ": " + error.what());
    }
  };
  return app_
      .add_option_function<std::string>(
          spellings(name, short_name), checked, help)
      ->envname(variable(name))
      ->type_name(type)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void OptionBinder::toggle(const std::string& name,
                          const std::string& help,
                          const std::function<void()>& set,
                          const std::string& short_name) const {
  app_.add_flag_function(
          spellings(name, short_name),
          [set](int64_t count) {
            if (count > 0) {
              set();
            }
          },
          help)
      ->envname(variable(name));
}

}  // namespace launcher
