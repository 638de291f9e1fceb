#pragma once

#include <string>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/net/endpoint.h"

namespace launcher {

/// Sockets of a host that others are to find, and where they find it.
struct Listeners {
  Endpoint endpoint;
  std::vector<Fd> listeners;
};

/// Listens at a port that the kernel chooses: at `host` alone where that is an
/// address of this host, else (a name, an address outside of a NAT) at all its
/// own.
///
/// @throws LaunchError when it cannot
Listeners listen_on_free_port(const std::string& host);

}  // namespace launcher
