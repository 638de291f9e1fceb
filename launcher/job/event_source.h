#pragma once

#include <chrono>

#include "launcher/job/policy/event.h"

namespace launcher {

/// Source of events and timers; the only place where the supervisor blocks. An
/// interface, so that tests can run without a clock; JobEvents is the
/// production implementation.
class EventSource {
 public:
  virtual ~EventSource() = default;

  /// Blocks until the next event. Events are returned in the order in which
  /// they happened.
  virtual Event next() = 0;

  /// Returns the current time.
  virtual std::chrono::steady_clock::time_point now() const = 0;

  /// Delivers a TimerFired after `delay`. Arming an armed timer restarts it.
  virtual void arm(Timer timer, std::chrono::milliseconds delay) = 0;
  virtual void disarm(Timer timer) = 0;
};

}  // namespace launcher
