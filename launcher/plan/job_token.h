#pragma once

#include <chrono>
#include <string>

#include "launcher/base/environment.h"

namespace launcher {

inline constexpr size_t kLongestToken = 1024;  ///< in bytes

/// The secret that a job's hosts know: the text of `file` (--rdzv-conf
/// token_file), else the environment's DDPRUN_TOKEN; empty where there is
/// neither.
///
/// The file holds one line of printable ASCII, as `openssl rand -hex 16` writes
/// it; spaces and newlines around it do not count. It may be a pipe that ends
/// within `patience`.
///
/// @throws LaunchError for a file that cannot be read, or holds something else
std::string job_token(
    const std::string& file,
    const Environment& environment,
    std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace launcher
