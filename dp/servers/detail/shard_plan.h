#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dp::detail {

/// Distributes parameters over servers, largest parameter first, each to the
/// server with the fewest bytes so far. No server therefore holds more than the
/// fair share plus its largest parameter. Parameters are not split, because
/// some optimizers need the whole parameter. Pure.
///
/// @param bytes  size of each parameter
/// @returns for each server the indices of its parameters, ascending. No list
///   is empty if there are at least as many parameters as servers.
///
/// Source: Graham's longest-processing-time rule, 1969.
std::vector<std::vector<size_t>> plan_shards(const std::vector<int64_t>& bytes,
                                             size_t servers);

}  // namespace dp::detail
