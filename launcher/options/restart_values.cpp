#include "launcher/options/restart_values.h"

#include <algorithm>
#include <csignal>
#include <stdexcept>
#include <string>

#include "launcher/options/values.h"

namespace launcher {

std::vector<int> parse_exit_codes(std::string_view text) {
  std::vector<int> codes;
  for (const auto& item : parse_list(text)) {
    codes.push_back(parse_exit_code(item));
  }
  return codes;
}

int parse_exit_code(std::string_view text) {
  return parse_integer(text, 1, 255);
}

Preemption parse_preemption(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const auto signals = parse_signals(text.substr(0, colon));
  Preemption preemption;
  preemption.signal = signals.front();
  const bool is_job_control =
      preemption.signal == SIGTSTP || preemption.signal == SIGCONT;
  if (signals.size() > 1 || is_job_control) {
    throw std::invalid_argument(
        "expected one signal that stops and continues nothing, such as "
        "USR1:60, but got \"" +
        std::string(text) + "\"");
  }
  if (colon < text.size()) {
    preemption.time = parse_seconds(text.substr(colon + 1));
  }
  return preemption;
}

}  // namespace launcher
