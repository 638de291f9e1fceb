#pragma once

#include <string>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/net/endpoint.h"

namespace launcher {

/// Listening sockets with the endpoint for other hosts.
struct Listeners {
  Endpoint endpoint;
  std::vector<Fd> listeners;
};

/// Listens at a port that the kernel chooses. If `host` is a numeric address of
/// this host, listens there alone; else (a name, an address outside a NAT) at
/// all its addresses.
///
/// @throws LaunchError when it cannot listen
Listeners listen_on_free_port(const std::string& host);

}  // namespace launcher
