#pragma once

#include <optional>

#include "ddp/base/cluster/worker_env.h"

// Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// More ranks than these nobody has.
inline constexpr int kMostRanks = 1 << 24;

/// The integer that a variable holds; nothing when it is not set.
///
/// @throws std::invalid_argument that names it and the range when it holds
///   anything else
std::optional<int> env_integer(const EnvReader& reader,
                               const char* name,
                               int least,
                               int most);

/// The same, where it must be set.
int require_env_integer(const EnvReader& reader,
                        const char* name,
                        int least,
                        int most);

}  // namespace ddp::detail
