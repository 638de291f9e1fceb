#pragma once

#include <string>
#include <vector>

namespace samples {

/// Median and quartiles of some numbers.
struct Spread {
  double low;  ///< first quartile
  double median;
  double high;  ///< third quartile
};

/// Returns the quartiles, interpolated linearly (the default of NumPy). Pure.
/// @throws c10::Error if `numbers` is empty.
Spread spread(std::vector<double> numbers);

/// Returns, for example, "12.3 [11.9, 13.0]", with `decimals` decimals.
std::string to_text(const Spread& spread, int decimals);

}  // namespace samples
