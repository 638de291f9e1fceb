#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dp::detail {

/// Pure: which parameters each server holds. The largest goes first, each to
/// the server with the fewest bytes so far; so no server has more than the
/// fair share plus its largest parameter. Parameters stay whole, which keeps
/// optimizers that look at a whole parameter exact.
///
/// @param bytes  size of each parameter
/// @returns for each server the indices of its parameters, ascending. With at
///   least as many parameters as servers, none is empty.
///
/// Source: Graham's longest-processing-time rule, 1969.
std::vector<std::vector<size_t>> plan_shards(const std::vector<int64_t>& bytes,
                                             size_t servers);

}  // namespace dp::detail
