#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dp::detail {

/// Distributes parameters over servers by their bytes, by `partition_whole`.
/// Parameters are not split, because some optimizers need the whole parameter.
/// Pure.
///
/// @param bytes  size of each parameter
/// @returns for each server the indices of its parameters, ascending. No list
///   is empty if there are at least as many parameters as servers.
std::vector<std::vector<size_t>> plan_shards(std::vector<int64_t> bytes,
                                             size_t servers);

}  // namespace dp::detail
