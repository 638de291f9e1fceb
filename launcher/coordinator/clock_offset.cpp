#include "launcher/coordinator/clock_offset.h"

namespace launcher {
namespace {

using std::chrono::nanoseconds;

// Of quartz clocks that nobody corrects: 100 us a second each.
constexpr int64_t kDrift = 5'000;

}  // namespace

void ClockOffset::add(Time sent, nanoseconds shown, Time received) {
  const nanoseconds way = received - sent;
  if (way < nanoseconds(0)) {
    return;
  }
  const nanoseconds half = (way + nanoseconds(1)) / 2;
  const RemoteTime fresh{shown + half, half + way / kDrift};
  const auto known = there(received);
  const bool is_better = !known || fresh.error <= known->error;
  if (is_better ||
      std::chrono::abs(known->at - fresh.at) > known->error + fresh.error) {
    best_ = Sample{received, fresh};
  }
}

std::optional<RemoteTime> ClockOffset::there(Time here) const {
  if (!best_) {
    return std::nullopt;
  }
  const nanoseconds passed = here - best_->here;
  return RemoteTime{best_->there.at + passed,
                    best_->there.error + std::chrono::abs(passed) / kDrift};
}

}  // namespace launcher
