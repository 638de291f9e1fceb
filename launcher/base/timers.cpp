#include "launcher/base/timers.h"

#include <algorithm>
#include <utility>

namespace launcher {

void Timers::arm(const std::string& name, Time deadline, Handler handler) {
  disarm(name);
  const auto later = std::upper_bound(
      timers_.begin(),
      timers_.end(),
      deadline,
      [](Time time, const Timer& timer) { return time < timer.deadline; });
  timers_.insert(later, {name, deadline, ++last_number_, std::move(handler)});
}

void Timers::disarm(const std::string& name) {
  timers_.erase(
      std::remove_if(timers_.begin(),
                     timers_.end(),
                     [&](const Timer& timer) { return timer.name == name; }),
      timers_.end());
}

bool Timers::is_armed(const std::string& name) const {
  return std::any_of(timers_.begin(), timers_.end(), [&](const Timer& timer) {
    return timer.name == name;
  });
}

std::optional<Timers::Time> Timers::next_deadline() const {
  return timers_.empty() ? std::nullopt
                         : std::optional(timers_.front().deadline);
}

void Timers::run_due(Time now) {
  const uint64_t last = last_number_;
  for (;;) {
    // Search again each time: the handler may have changed the list.
    const auto due =
        std::find_if(timers_.begin(), timers_.end(), [&](const Timer& timer) {
          return timer.deadline <= now && timer.number <= last;
        });
    if (due == timers_.end()) {
      return;
    }
    const Handler handler = std::move(due->handler);
    timers_.erase(due);
    handler();
  }
}

}  // namespace launcher
