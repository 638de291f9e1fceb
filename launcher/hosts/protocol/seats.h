#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/plan/world.h"

namespace launcher {

/// A host that waits for the next world.
struct Candidate {
  int worker_count = 1;
  std::string role;
  Endpoint store;  ///< on this host
  std::optional<int> wanted_rank{};
  int earlier_rank = -1;     ///< among the hosts; -1: none
  bool is_survivor = false;  ///< it was in the last world and has never left
};

/// Gives hosts their places in a world of at most `most_hosts`. Pure.
///
/// The survivors of the last world come first, in their order: so rank 0's host
/// is one that has been there, whenever one is left. Then come the hosts that
/// had a rank once, then those that want one, each by that rank, then the
/// others as they stand in the list.
///
/// @param candidates in the order in which they came
/// @returns a world for each candidate, without generation and restarts;
///   nothing for those who are spare
std::vector<std::optional<World>> assign_seats(
    const std::vector<Candidate>& candidates, int most_hosts);

}  // namespace launcher
