#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

namespace ddp::detail {

/// Pauses between attempts. Each pause is twice as long as the one before, up
/// to a limit: short at first, because many failures end at once.
class Backoff {
 public:
  using Duration = std::chrono::milliseconds;

  /// @param first  above 0
  Backoff(Duration first, Duration most)
      : first_(first), most_(most), next_(first) {}

  /// Returns the pause before the next attempt.
  Duration next() { return std::exchange(next_, std::min(2 * next_, most_)); }
  /// Begins again with the first pause.
  void reset() { next_ = first_; }

 private:
  Duration first_;
  Duration most_;
  Duration next_;
};

}  // namespace ddp::detail
