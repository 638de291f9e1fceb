#include "ddp/base/cluster/env_integer.h"

#include <stdexcept>
#include <string>

#include "ddp/base/text/number.h"

namespace ddp::detail {

std::optional<int> env_integer(const EnvReader& reader,
                               const char* name,
                               int least,
                               int most) {
  const char* raw = reader(name);
  if (raw == nullptr) {
    return std::nullopt;
  }
  const auto value = parse_number<int>(raw);
  if (!value || *value < least || *value > most) {
    throw std::invalid_argument(
        "Expected the environment variable " + std::string(name) +
        " to be an integer from " + std::to_string(least) + " to " +
        std::to_string(most) + ", but got \"" + raw + "\"");
  }
  return value;
}

int require_env_integer(const EnvReader& reader,
                        const char* name,
                        int least,
                        int most) {
  const auto value = env_integer(reader, name, least, most);
  if (!value) {
    throw std::invalid_argument("Expected the environment variable " +
                                std::string(name) +
                                " to be set, but it is missing");
  }
  return *value;
}

std::string env_text(const EnvReader& reader, const char* name) {
  const char* text = reader(name);
  return text == nullptr ? "" : text;
}

bool is_filled(const EnvReader& reader, const char* name) {
  return !env_text(reader, name).empty();
}

}  // namespace ddp::detail
