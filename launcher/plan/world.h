#pragma once

#include <optional>

#include "launcher/options/values.h"

namespace launcher {

/// Ranks among the workers of all hosts that have this host's role.
struct RoleRanks {
  int first_rank = 0;  ///< ROLE_RANK of this host's first worker
  int size = 1;
};

/// The hosts that run one attempt of a job together, as seen by one of them.
/// Hosts may have different numbers of workers, so ranks are counted from
/// first_rank.
struct World {
  int generation = 0;  ///< counts all worlds of a job
  int restarts = 0;    ///< number of worlds that followed a failure
  int host_rank = 0;
  int host_count = 1;
  int first_rank = 0;  ///< RANK of this host's first worker
  int world_size = 1;  ///< workers of all hosts
  Endpoint master{};   ///< address of rank 0's store
  /// std::nullopt: all workers have this host's role
  std::optional<RoleRanks> role{};
};

}  // namespace launcher
