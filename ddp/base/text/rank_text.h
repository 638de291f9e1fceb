#pragma once

#include <string>
#include <vector>

// Ranks in messages. Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// Returns "rank 4", or "ranks 0-2, 7".
std::string rank_list(std::vector<int> ranks);

/// Lists texts by rank: "on ranks 0, 2: one text; on rank 3: another". A text
/// that several ranks have appears once. Empty texts are left out.
std::string texts_by_rank(const std::vector<std::string>& texts);

/// Lists names by rank as `texts_by_rank` does: " on ranks 0, 2: a, b; on rank
/// 3: c;". Of a long list, the text has the first 12 names and the number of
/// further names.
///
/// @param lists  one text per rank, with names separated by ", "; empty texts
///   are left out.
std::string names_by_rank(const std::vector<std::string>& lists);

}  // namespace ddp::detail
