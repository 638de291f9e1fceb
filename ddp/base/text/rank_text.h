#pragma once

#include <string>
#include <vector>

// Ranks in messages. Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// "rank 4", or "ranks 0-2, 7".
std::string rank_list(std::vector<int> ranks);

/// What each rank names, for one line: " on ranks 0, 2: a, b; on rank 3: c;".
/// A text that several ranks have is said once, of a long one the first names
/// and how many there are beside.
///
/// @param lists names separated by ", ", one text a rank; an empty one is left
///   out
std::string names_by_rank(const std::vector<std::string>& lists);

}  // namespace ddp::detail
