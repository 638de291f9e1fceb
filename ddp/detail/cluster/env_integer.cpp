#include "ddp/detail/cluster/env_integer.h"

#include <charconv>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ddp::detail {

std::optional<int> env_integer(const EnvReader& reader,
                               const char* name,
                               int least,
                               int most) {
  const char* raw = reader(name);
  if (raw == nullptr) {
    return std::nullopt;
  }
  const std::string_view text(raw);
  int value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      value < least || value > most) {
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

}  // namespace ddp::detail
