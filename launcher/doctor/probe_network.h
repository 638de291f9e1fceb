#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/doctor/machine.h"
#include "launcher/options/options.h"

namespace launcher {

/// Returns the process that listens on a TCP port of this host: "nginx (pid
/// 77)". Empty if there is none, or if the process belongs to another user.
std::string port_holder(int port);

/// Returns the inode of the socket that listens on a port, from the text of
/// /proc/net/tcp or tcp6. Returns std::nullopt if there is none. Pure function.
std::optional<std::string> listening_inode(std::string_view table, int port);

/// Endpoint where the hosts of a command line's job would connect.
struct RendezvousEndpoint {
  struct Port {
    int number;
    std::string option;
    bool may_be_met = false;  ///< see PortFacts
  };

  /// std::nullopt: ddprun chooses an address of this host.
  std::optional<std::string> host;
  /// Ports that this host would listen on; empty if only another process
  /// listens, which may already do so on the same machine.
  std::vector<Port> ports;
};

/// Returns the endpoint of a command line's rendezvous. Pure function.
RendezvousEndpoint rendezvous_endpoint(const LaunchOptions& options);

/// Reads network facts from the kernel and the name service. May block for
/// long.
///
/// @param host_name of this machine
NetworkFacts probe_network(const std::string& host_name,
                           const RendezvousEndpoint& point);

}  // namespace launcher
