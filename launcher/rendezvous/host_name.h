#pragma once

#include <string>

namespace launcher {

/// Checks that a host name can be turned into an address, so that a wrong one
/// is an error now and not a time-out of every worker later.
///
/// @throws LaunchError when it cannot
void require_resolvable(const std::string& host);

}  // namespace launcher
