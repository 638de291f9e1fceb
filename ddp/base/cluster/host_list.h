#pragma once

#include <string>
#include <string_view>
#include <vector>

// Slurm's compact lists. The result has at most kMostHosts items,
// for any text. Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

inline constexpr size_t kMostHosts = 1 << 16;

/// Expands a list of host names, in its order: "node[1-3,07],gpu-[01-02]x[0-1]"
/// is node1, node2, node3, node07, gpu-01x0, gpu-01x1, gpu-02x0, gpu-02x1.
///
/// @throws std::invalid_argument "expected ..., but got ..."
std::vector<std::string> expand_host_list(std::string_view text);

/// Expands a list of numbers: "4(x2),1" is 4, 4, 1.
///
/// @throws std::invalid_argument "expected ..., but got ..."
std::vector<int> expand_counts(std::string_view text);

}  // namespace ddp::detail
