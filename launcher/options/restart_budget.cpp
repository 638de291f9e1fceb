#include "launcher/options/restart_budget.h"

#include <algorithm>

namespace launcher {

std::optional<RestartBudget::Time> RestartBudget::next_allowed(int restarts,
                                                               Time now) const {
  const int spent = rules_.window ? counted(now) : restarts;
  if (spent < most_) {
    return now;
  }
  if (!rules_.window || most_ == 0) {
    return std::nullopt;
  }
  const auto oldest = restarts_.end() - most_;
  return *oldest + *rules_.window;
}

bool RestartBudget::allows(int restarts, Time now) const {
  const auto next = next_allowed(restarts, now);
  return next && *next <= now;
}

std::chrono::milliseconds RestartBudget::spend(Time now) {
  // The delay stops doubling at the longest delay, so it cannot overflow.
  std::chrono::milliseconds delay = rules_.first_delay;
  for (int spent = counted(now); spent > 0 && delay < rules_.longest_delay;
       --spent) {
    delay = std::min(delay * 2, rules_.longest_delay);
  }
  if (rules_.window) {
    while (!restarts_.empty() && now - restarts_.front() >= *rules_.window) {
      restarts_.pop_front();
    }
  }
  restarts_.push_back(now);
  return delay;
}

int RestartBudget::counted(Time now) const {
  return static_cast<int>(
      std::count_if(restarts_.begin(), restarts_.end(), [&](Time restart) {
        return !rules_.window || now - restart < *rules_.window;
      }));
}

}  // namespace launcher
