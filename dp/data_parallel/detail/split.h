#pragma once

#include <cstdint>
#include <vector>

namespace dp::detail {

/// How rows are shared out among devices.
struct SplitRule {
  size_t devices = 1;
  std::vector<int64_t> sizes;   ///< rows of each; empty: not given
  std::vector<double> weights;  ///< shares of each; empty: equal
};

/// Pure: checks that a rule fits the devices.
/// @throws c10::Error when sizes and weights are both given, when there is not
///   one for each device, when one is negative, or when all are 0.
void check(const SplitRule& rule);

/// Pure: rows of each device, 0 for one that does not take part.
///
/// Equal shares are those of `Tensor::chunk`: all as large as the first, what
/// is left for the last. Weighted ones are rounded so that they add up, to the
/// first of the largest remainders.
///
/// @throws c10::Error when given sizes do not add up to `rows`.
std::vector<int64_t> split_rows(int64_t rows, const SplitRule& rule);

}  // namespace dp::detail
