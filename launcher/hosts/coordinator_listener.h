#pragma once

#include <string>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/net/address.h"
#include "launcher/options/rendezvous_config.h"

namespace launcher {

/// Listens for the hosts of a job if this process is to run the coordinator:
/// the first ddprun on the endpoint's host runs it. Other hosts may resolve the
/// endpoint's name to any address of this host, so this process listens at all
/// its addresses, or, for "localhost" and a numeric address, only at the
/// addresses of the endpoint.
///
/// @param addresses  the addresses to which the endpoint's name resolves
/// @returns no sockets if another process runs the coordinator
/// @throws LaunchError when this process must listen there and cannot
std::vector<Fd> listen_as_coordinator(
    const CoordinatorEndpoint& coordinator,
    const std::vector<SocketAddress>& addresses);

/// Text for a host that waits for others: the addresses of the listeners,
/// possible reasons why the others do not come, with advice, and the option or
/// scheduler that has set the number of hosts. For loopback addresses the text
/// has "; no other machine reaches ...", and for a host that may be rank 0's by
/// mistake, a hint at --node-rank.
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
