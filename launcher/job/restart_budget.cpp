#include "launcher/job/restart_budget.h"

#include <algorithm>

namespace launcher {

bool RestartBudget::allows(const ExitStatus& failure,
                           int restarts,
                           Time now) const {
  const bool is_final = failure.signal == 0 &&
                        std::find(rules_.final_codes.begin(),
                                  rules_.final_codes.end(),
                                  failure.code) != rules_.final_codes.end();
  return !is_final && (rules_.window ? counted(now) : restarts) < most_;
}

std::chrono::milliseconds RestartBudget::spend(Time now) {
  // Doubling ends at the longest delay, so it cannot overflow.
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
