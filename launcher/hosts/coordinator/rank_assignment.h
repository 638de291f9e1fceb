#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts/coordinator/host_table.h"
#include "launcher/plan/world.h"

namespace launcher {

/// Host that waits for the next world.
struct Candidate {
  int worker_count = 1;
  std::string role;
  Endpoint store;  ///< endpoint of rank 0's store on this host
  std::optional<int> wanted_rank{};
  int earlier_rank = -1;     ///< last rank among the hosts; -1: none
  bool is_survivor = false;  ///< it was in the last world and has not left
};

/// Assigns the ranks in a world of at most `most_hosts`. Pure.
///
/// Survivors of the last world come first, in their order. So the host with
/// rank 0 is a survivor if there is one. Hosts that once had a rank come next,
/// then hosts that want a rank, each ordered by that rank, then the other hosts
/// in the order of the list.
///
/// @param candidates  in the order of their arrival
/// @returns a world for each candidate, without generation and restarts;
///   nothing for a spare host
std::vector<std::optional<World>> assign_ranks(
    const std::vector<Candidate>& candidates, int most_hosts);

/// Forms a new world of the joined hosts, at most most_hosts. The other hosts
/// have no world afterwards. Pure.
///
/// @param world  has restarts and the last generation
/// @returns the new generation, above the last one and all that the hosts know
int form_world(HostTable& hosts, const JobTerms& terms, const World& world);

}  // namespace launcher
