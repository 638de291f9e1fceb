#pragma once

#include <string>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/net/address.h"
#include "launcher/options/rendezvous_config.h"

namespace launcher {

/// Listens for the hosts of a job if this process is to run the coordinator:
/// the first ddprun on the endpoint's host does. Other hosts may resolve the
/// endpoint's name to any address of this host, so it listens at all of them,
/// for "localhost" and a numeric address at those of the endpoint alone.
///
/// @param addresses  the addresses to which the endpoint's name resolves
/// @returns no sockets if another process runs the coordinator
/// @throws LaunchError when this process must listen there and cannot
std::vector<Fd> listen_as_coordinator(
    const CoordinatorEndpoint& coordinator,
    const std::vector<SocketAddress>& addresses);

/// For a host that waits for others: the addresses of the listeners, what may
/// keep the others from coming, with advice, and what has set the number of
/// hosts. Loopback addresses get "; no other machine reaches ...", and a host
/// that may wrongly take itself for rank 0's the hint at --node-rank.
///
/// @param addresses  the addresses to which the endpoint's name resolves
std::string advice_for(const CoordinatedConfig& config,
                       const std::vector<SocketAddress>& addresses,
                       const std::vector<Fd>& listeners);

/// Number of connections that a coordinator accepts: two for each host, which
/// may connect again before its old connection is closed, and a few from
/// programs that are no hosts of the job.
size_t max_connections(const JobTerms& terms);

}  // namespace launcher
