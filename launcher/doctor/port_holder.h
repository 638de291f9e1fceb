#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace launcher {

/// The process that listens on a TCP port of this host: "nginx (pid 77)"; empty
/// where none does, or it is another user's.
std::string port_holder(int port);

/// The inode of the socket that listens on a port, in the text of
/// /proc/net/tcp or tcp6. Pure.
std::optional<std::string> listening_inode(std::string_view table, int port);

}  // namespace launcher
