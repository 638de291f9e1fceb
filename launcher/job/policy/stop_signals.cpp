#include "launcher/job/policy/stop_signals.h"

#include <algorithm>
#include <csignal>
#include <utility>

namespace launcher {

StopSignals::StopSignals(std::vector<int> numbers)
    : numbers_(std::move(numbers)) {}

bool StopSignals::count(int number) {
  if (std::find(numbers_.begin(), numbers_.end(), number) == numbers_.end() &&
      number != SIGKILL) {
    return false;
  }
  ++count_;
  has_killed_ = has_killed_ || number == SIGKILL;
  keyboard_count_ += number == SIGINT || number == SIGQUIT ? 1 : 0;
  return true;
}

}  // namespace launcher
