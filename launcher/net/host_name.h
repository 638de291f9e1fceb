#pragma once

#include <string>

namespace launcher {

/// Whether the host is a numeric address, which needs no name service.
bool is_address(const std::string& host);

/// Checks that a host name resolves, so that a wrong name is an error now and
/// not a time-out of every worker later.
///
/// @throws LaunchError when it does not
void require_resolvable(const std::string& host);

}  // namespace launcher
