#pragma once

#include <string>
#include <vector>

// Ranks in messages. Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// Returns "rank 4", or "ranks 0-2, 7".
std::string rank_list(std::vector<int> ranks);

/// Lists names by rank, in one line: " on ranks 0, 2: a, b; on rank 3: c;". A
/// text that several ranks have appears once. Of a long list, the text has the
/// first 12 names and the number of further names.
///
/// @param lists  one text per rank, with names separated by ", "; empty texts
///   are left out.
std::string names_by_rank(const std::vector<std::string>& lists);

}  // namespace ddp::detail
