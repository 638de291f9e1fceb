#pragma once

#include <string>

namespace launcher {

/// The host is given by its address, so no name service is asked.
bool is_address(const std::string& host);

/// Checks a host name, so that a wrong one is an error now and not a time-out
/// of every worker later.
///
/// @throws LaunchError when it cannot be turned into an address
void require_resolvable(const std::string& host);

}  // namespace launcher
