#pragma once

#include <algorithm>
#include <vector>

namespace samples {

/// The middle one of `numbers` in order (the upper of two). Needs at least one.
inline double median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + static_cast<int>(numbers.size()) / 2;
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

}  // namespace samples
