#include "dp/servers/detail/staleness_gate.h"

#include <algorithm>

namespace dp::detail {

void StalenessGate::ask(int worker) {
  if (pushed_.count(worker) == 0) {
    held_.erase(worker);
  }
  queue_.push_back(worker);
}

bool StalenessGate::may_take(int worker) const {
  // A new deadline is the latest one, so the other workers can still meet
  // theirs.
  if (pushed_.count(worker) > 0 ||
      static_cast<int64_t>(held_.size()) > bound_) {
    return false;
  }
  // A worker with gradients that wait is skipped.
  const auto next =
      std::find_if(queue_.begin(), queue_.end(), [this](int waiting) {
        return pushed_.count(waiting) == 0;
      });
  return next != queue_.end() && *next == worker;
}

void StalenessGate::take(int worker) {
  queue_.erase(std::find(queue_.begin(), queue_.end(), worker));
  held_[worker] = version_;
}

void StalenessGate::push(int worker) {
  pushed_.insert(worker);
}

std::optional<StalenessGate::Update> StalenessGate::next_update() {
  std::optional<Update> next;
  for (const int worker : pushed_) {
    const int64_t staleness = version_ - held_.at(worker);
    if ((!next || staleness > next->staleness) &&
        is_feasible_without(worker, version_ + 1)) {
      next = Update{worker, staleness};
    }
  }
  if (next) {
    pushed_.erase(next->worker);
    held_.erase(next->worker);
    ++version_;
  }
  return next;
}

void StalenessGate::drop(int worker) {
  queue_.erase(std::remove(queue_.begin(), queue_.end(), worker), queue_.end());
  if (pushed_.count(worker) == 0) {
    held_.erase(worker);
  }
}

bool StalenessGate::is_feasible_without(int worker, int64_t version) const {
  std::vector<int64_t> taken;
  for (const auto& [holder, from] : held_) {
    if (holder != worker) {
      taken.push_back(from);
    }
  }
  std::sort(taken.begin(), taken.end());
  for (size_t i = 0; i < taken.size(); ++i) {
    if (version + static_cast<int64_t>(i) - taken[i] > bound_) {
      return false;
    }
  }
  return true;
}

}  // namespace dp::detail
