#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "launcher/options/values.h"

namespace launcher {

/// Ranks among the workers of all hosts with one host's role.
struct RoleRanks {
  int first_rank = 0;  ///< ROLE_RANK of this host's first worker
  int size = 1;
};

/// Longer than any job.
inline constexpr std::chrono::milliseconds kNever{int64_t{1} << 50};

/// The hosts that run one attempt of a job together, as one of them sees it.
/// Hosts may have different numbers of workers, so ranks are counted from
/// first_rank.
struct World {
  int generation = 0;  ///< counts the worlds of a job, whatever ended the last
  int restarts = 0;    ///< how many of them followed a failure
  int host_rank = 0;
  int host_count = 1;
  int first_rank = 0;               ///< RANK of this host's first worker
  int world_size = 1;               ///< workers of all hosts
  Endpoint master{};                ///< where rank 0's store will listen
  std::optional<RoleRanks> role{};  ///< nothing: all workers have this host's
  /// The hosts share one budget of restarts: a failure less than so long after
  /// the start ends the job. Nothing: this host counts for itself.
  std::optional<std::chrono::milliseconds> restart_after{};
};

}  // namespace launcher
