#pragma once

#include <chrono>

namespace dp::detail {

/// Periodic timer for signs of life.
class Interval {
 public:
  explicit Interval(std::chrono::milliseconds length) : length_(length) {}

  /// Returns true if `length` has passed since construction or since the last
  /// call that returned true.
  bool has_passed() {
    const auto now = std::chrono::steady_clock::now();
    if (now - start_ < length_) {
      return false;
    }
    start_ = now;
    return true;
  }

 private:
  std::chrono::milliseconds length_;
  std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
};

}  // namespace dp::detail
