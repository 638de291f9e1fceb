#include "launcher/net/listeners.h"

#include <utility>

#include "launcher/base/error.h"
#include "launcher/net/address.h"
#include "launcher/net/host_name.h"

namespace launcher {
namespace {

/// Addresses to listen at; the first one that works is used.
std::vector<SocketAddress> listen_addresses(const std::string& host) {
  if (is_address(host)) {
    auto chosen = addresses_of(host, 0);
    if (!chosen.empty() && is_own(chosen.front())) {
      return chosen;
    }
  }
  return all_own_addresses(0);
}

}  // namespace

Listeners listen_on_free_port(const std::string& host) {
  for (const SocketAddress& place : listen_addresses(host)) {
    if (Fd listener = listen_at(place)) {
      Listeners result{{host, port_of(own_end(listener))}, {}};
      result.listeners.push_back(std::move(listener));
      return result;
    }
  }
  throw LaunchError(kExitFailure,
                    "cannot listen for the other hosts at " + host +
                        "; check --local-addr and the network");
}

}  // namespace launcher
