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

ddp::EnvReader reader_of(const Environment& environment) {
  return [&environment](const char* name) -> const char* {
    const std::string* value = find_variable(environment, name);
    return value != nullptr ? value->c_str() : nullptr;
  };
}

}  // namespace launcher
