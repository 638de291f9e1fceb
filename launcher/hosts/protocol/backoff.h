#pragma once

#include <chrono>

namespace launcher {

/// Pauses between attempts at what is there in a moment, or not for long: each
/// twice as long as the one before, up to a limit.
class Backoff {
 public:
  using Duration = std::chrono::milliseconds;

  /// @param first above 0
  Backoff(Duration first, Duration most);

  /// The pause before the next attempt.
  Duration next();
  /// The next one is the first again.
  void reset() { next_ = first_; }

 private:
  Duration first_;
  Duration most_;
  Duration next_;
};

}  // namespace launcher
