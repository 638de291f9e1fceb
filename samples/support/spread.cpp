#include "samples/support/spread.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "samples/support/text.h"

namespace samples {

Spread spread(std::vector<double> numbers) {
  TORCH_CHECK(!numbers.empty(), "Expected numbers, but got none.");
  std::sort(numbers.begin(), numbers.end());
  const auto quantile = [&](double part) {
    const double place = part * static_cast<double>(numbers.size() - 1);
    const auto below = static_cast<size_t>(place);
    const auto above = std::min(below + 1, numbers.size() - 1);
    return std::lerp(numbers[below], numbers[above], place - std::floor(place));
  };
  return {quantile(0.25), quantile(0.5), quantile(0.75)};
}

std::string to_text(const Spread& spread, int decimals) {
  return format("%.*f [%.*f, %.*f]",
                decimals,
                spread.median,
                decimals,
                spread.low,
                decimals,
                spread.high);
}

}  // namespace samples
