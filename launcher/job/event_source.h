#pragma once

#include <chrono>

#include "launcher/job/policy/event.h"

namespace launcher {

/// The one place where ddprun waits, and its timers. An interface, so that
/// tests can do without a clock; JobEvents is the real one.
class EventSource {
 public:
  virtual ~EventSource() = default;

  /// Waits for the next event. Events come in the order in which they happened.
  virtual Event next() = 0;

  /// The present time.
  virtual std::chrono::steady_clock::time_point now() const = 0;

  /// A TimerFired after `delay`. A timer that is armed again starts anew.
  virtual void arm(Timer timer, std::chrono::milliseconds delay) = 0;
  virtual void disarm(Timer timer) = 0;
};

}  // namespace launcher
