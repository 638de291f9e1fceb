#pragma once

#include <chrono>
#include <string>

#include "launcher/base/environment.h"

namespace launcher {

inline constexpr size_t kLongestToken = 1024;  ///< in bytes

/// Returns the secret shared by a job's hosts: the text of `file` (--rdzv-conf
/// token_file), else the environment's DDPRUN_TOKEN; empty if neither is given.
///
/// The file holds one line of printable ASCII, as written by `openssl rand -hex
/// 16`; surrounding spaces and newlines are ignored. The file may be a pipe
/// that ends within `patience`.
///
/// @throws LaunchError if the file cannot be read or has other contents
std::string job_token(
    const std::string& file,
    const Environment& environment,
    std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace launcher
