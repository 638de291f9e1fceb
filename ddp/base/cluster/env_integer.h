#pragma once

#include <optional>
#include <string>

#include "ddp/base/cluster/worker_env.h"

// Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// Upper bound of ranks in a job.
inline constexpr int kMostRanks = 1 << 24;

/// Returns the integer value of a variable, or std::nullopt if it is not set.
///
/// @throws std::invalid_argument that names the variable and the range for any
///   other value.
std::optional<int> env_integer(const EnvReader& reader,
                               const char* name,
                               int least,
                               int most);

/// As above, but @throws std::invalid_argument also if the variable is not set.
int require_env_integer(const EnvReader& reader,
                        const char* name,
                        int least,
                        int most);

/// Returns the value of a variable, or "" if it is not set.
std::string env_text(const EnvReader& reader, const char* name);

/// Returns true if the variable is set and not empty.
bool is_filled(const EnvReader& reader, const char* name);

}  // namespace ddp::detail
