#pragma once

#include <string>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/net/address.h"
#include "launcher/options/meeting.h"

namespace launcher {

/// Addresses without a port, with this one.
std::vector<SocketAddress> with_port(const std::vector<std::string>& addresses,
                                     int port);

/// Sockets that listen where the hosts of a job meet, if it is for this process
/// to host them: the first one on the endpoint's host. None if it is not. Hosts
/// may reach it by different addresses of one name, so there is one for each
/// that this host has.
///
/// @param addresses of the endpoint
/// @throws LaunchError when it should listen there and cannot
std::vector<Fd> listen_at_meeting(const Meeting& meeting,
                                  const std::vector<SocketAddress>& addresses);

/// No other machine reaches any of these listeners.
bool are_on_loopback(const std::vector<Fd>& listeners);

/// Connections that its coordinator takes: of all hosts, of those that come
/// again before they are missed, and of a few strangers.
size_t most_guests(const JobTerms& terms);

}  // namespace launcher
