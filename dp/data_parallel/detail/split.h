#pragma once

#include <cstdint>
#include <vector>

namespace dp::detail {

/// Rule for distributing rows over devices.
struct SplitRule {
  size_t devices = 1;
  std::vector<int64_t> sizes;   ///< rows per device; empty: not given
  std::vector<double> weights;  ///< relative shares; empty: equal shares
};

/// Checks that a rule is valid for its number of devices. Pure.
/// @throws c10::Error if both sizes and weights are given, if their number is
///   not the number of devices, if one is negative or not finite, or if all are
///   0.
void check(const SplitRule& rule);

/// Returns the number of rows of each device, 0 for a device that does not
/// compute. Pure.
///
/// Equal shares follow `Tensor::chunk`: all shares are as large as the first,
/// and the remaining rows go to the last device with rows. Weighted shares are
/// rounded so that they add up to `rows`: the shares with the largest
/// remainders are rounded up, in the order of the devices if remainders are
/// equal.
///
/// @throws c10::Error if the given sizes do not add up to `rows`.
std::vector<int64_t> split_rows(int64_t rows, const SplitRule& rule);

}  // namespace dp::detail
