#pragma once

#include <string>
#include <vector>

namespace samples {

/// The middle half of some numbers.
struct Spread {
  double low;  ///< a quarter is below
  double median;
  double high;  ///< a quarter is above
};

/// Pure: quartiles, between two numbers linearly (the default of NumPy).
/// @throws c10::Error when there is no number.
Spread spread(std::vector<double> numbers);

/// "12.3 [11.9, 13.0]", with so many decimals.
std::string to_text(const Spread& spread, int decimals);

}  // namespace samples
