#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/doctor/hosts/hosts_facts.h"
#include "launcher/net/address.h"
#include "launcher/rendezvous/meeting.h"

namespace launcher {

/// Meets the doctors of the job's other hosts where the job's ddpruns would, or
/// at one of them that etcd names, and tries the ways between them. Ends within
/// five minutes and a half.
///
/// @param endpoint its addresses, one at least; without etcd
/// @param host this host's name, for people
/// @param address of this host, for the others; empty: that of its connection
/// @param tell what it waits for, for people
HostsFacts meet_hosts(const Meeting& meeting,
                      const std::vector<SocketAddress>& endpoint,
                      const std::string& host,
                      const std::string& address,
                      const std::function<void(const std::string&)>& tell);

}  // namespace launcher
