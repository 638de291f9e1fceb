#include "launcher/cli/restart_values.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "launcher/cli/values.h"

namespace launcher {

RestartDelays parse_restart_delays(std::string_view text) {
  constexpr std::chrono::milliseconds kUsualLongest = std::chrono::minutes(5);
  const size_t colon = std::min(text.find(':'), text.size());
  RestartDelays delays;
  delays.first = parse_seconds(text.substr(0, colon));
  delays.longest = colon < text.size() ? parse_seconds(text.substr(colon + 1))
                                       : std::max(delays.first, kUsualLongest);
  if (delays.longest < delays.first) {
    throw std::invalid_argument(
        "expected SECONDS:MOST with MOST not below SECONDS, but got \"" +
        std::string(text) + "\"");
  }
  return delays;
}

std::vector<int> parse_exit_codes(std::string_view text) {
  std::vector<int> codes;
  for (const auto& item : parse_list(text)) {
    codes.push_back(parse_integer(item, 1, 255));
  }
  return codes;
}

}  // namespace launcher
