#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace launcher {

/// Returns the process that listens on a TCP port of this host: "nginx (pid
/// 77)". Empty if there is none, or if the process belongs to another user.
std::string port_holder(int port);

/// Returns the inode of the socket that listens on a port, from the text of
/// /proc/net/tcp or tcp6. Returns std::nullopt if there is none. Pure function.
std::optional<std::string> listening_inode(std::string_view table, int port);

}  // namespace launcher
