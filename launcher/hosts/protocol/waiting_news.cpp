#include "launcher/hosts/protocol/waiting_news.h"

#include <algorithm>

namespace launcher {

void WaitingNews::start(Time now, std::chrono::milliseconds first) {
  due_ = now + first;
  was_printed_ = false;
}

void WaitingNews::mark_printed(Time now) {
  using std::chrono::minutes;
  due_ = now + (was_printed_ ? minutes(5) : minutes(1));
  was_printed_ = true;
}

std::string in_seconds(std::chrono::nanoseconds time) {
  const auto left = std::max(std::chrono::ceil<std::chrono::seconds>(time),
                             std::chrono::seconds(0));
  return " in " + std::to_string(left.count()) + " s";
}

}  // namespace launcher
