#include "launcher/job/policy/stop_signals.h"

#include <algorithm>
#include <csignal>
#include <utility>

namespace launcher {

StopSignals::StopSignals(std::vector<int> numbers)
    : numbers_(std::move(numbers)) {}

bool StopSignals::count(int number) {
  if (std::find(numbers_.begin(), numbers_.end(), number) == numbers_.end()) {
    return false;
  }
  add(number);
  return true;
}

bool StopSignals::count_without_workers(int number) {
  switch (number) {
    case SIGINT:
    case SIGQUIT:
    case SIGTERM:
    case SIGHUP:
      add(number);
      return true;
    default:
      return count(number);
  }
}

void StopSignals::add(int number) {
  ++count_;
  keyboard_count_ += number == SIGINT || number == SIGQUIT ? 1 : 0;
}

}  // namespace launcher
