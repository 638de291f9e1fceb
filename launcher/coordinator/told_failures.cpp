#include "launcher/coordinator/told_failures.h"

#include <algorithm>
#include <utility>

namespace launcher {

void ToldFailures::add(Told told) {
  const bool is_known =
      std::any_of(told_.begin(), told_.end(), [&told](const Told& known) {
        return known.id == told.id;
      });
  if (!is_known) {
    told_.push_back(std::move(told));
  }
}

const ToldFailures::Told& ToldFailures::first() const {
  return earliest(nullptr);
}

FirstFailure ToldFailures::order() const {
  const Told& first = earliest(nullptr);
  FirstFailure order{first.failure.rank, first.host};
  if (told_.size() > 1) {
    const Told& second = earliest(&first);
    FirstFailure::Next next{second.failure.rank, second.host};
    if (first.failure.time && second.failure.time) {
      next.later = second.failure.time->at - first.failure.time->at;
      next.clock_error = first.failure.time->error + second.failure.time->error;
    }
    order.next = std::move(next);
  }
  return order;
}

const ToldFailures::Told& ToldFailures::earliest(const Told* but) const {
  const Told* best = nullptr;
  for (const Told& told : told_) {
    const bool is_earlier =
        best == nullptr || (told.failure.time && best->failure.time &&
                            told.failure.time->at < best->failure.time->at);
    if (&told != but && is_earlier) {
      best = &told;
    }
  }
  return *best;
}

}  // namespace launcher
