#include "launcher/base/environment.h"

#include <unistd.h>

#include <string_view>

namespace launcher {

Environment current_environment() {
  Environment result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      // The first of two equal names wins, as in getenv().
      result.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return result;
}

const std::string* find_variable(const Environment& environment,
                                 const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : &found->second;
}

std::vector<std::string> worker_only_variables(const Environment& environment) {
  std::vector<std::string> names;
  for (const char* name :
       {ddp::env::kProgressFile, ddp::env::kStopFile, ddp::env::kStopSignal}) {
    if (environment.count(name) > 0) {
      names.emplace_back(name);
    }
  }
  return names;
}

ddp::EnvReader reader_of(const Environment& environment) {
  return [&environment](const char* name) -> const char* {
    const std::string* value = find_variable(environment, name);
    return value != nullptr ? value->c_str() : nullptr;
  };
}

}  // namespace launcher
