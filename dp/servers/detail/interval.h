#pragma once

#include <chrono>

namespace dp::detail {

/// Tells when the next sign of life is due.
class Interval {
 public:
  explicit Interval(std::chrono::milliseconds length) : length_(length) {}

  /// True once the length has passed since construction, or since this was
  /// true.
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
