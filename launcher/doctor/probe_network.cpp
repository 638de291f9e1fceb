#include "launcher/doctor/probes.h"

#include <netdb.h>

#include <algorithm>
#include <vector>

#include "launcher/base/error.h"
#include "launcher/base/overloaded.h"
#include "launcher/net/address.h"
#include "launcher/net/port.h"

namespace launcher {
namespace {

NameFacts look_up(const std::string& name, const ddp::detail::Resolved& found) {
  NameFacts facts{name, "", {}};
  for (const SocketAddress& address : found.addresses) {
    facts.addresses.push_back(
        {numeric_host(address), is_own(address), is_loopback(address)});
  }
  if (found.addresses.empty()) {
    facts.error = found.error == 0 ? "no address" : ::gai_strerror(found.error);
  }
  return facts;
}

PortFacts look_at(const RendezvousEndpoint::Port& port) {
  PortFacts facts{port.number, port.option, "", port.may_be_met};
  try {
    PortReservation{port.number};
  } catch (const LaunchError& error) {
    const std::string text = error.what();
    facts.refusal = text.substr(0, text.find(';'));
  }
  return facts;
}

}  // namespace

RendezvousEndpoint rendezvous_endpoint(const LaunchOptions& options) {
  return std::visit(
      Overloaded{
          [](const UncoordinatedConfig& known) {
            return known.master.port == 0
                       ? RendezvousEndpoint{}
                       : RendezvousEndpoint{
                             known.master.host,
                             {{known.master.port, "--master-port"}}};
          },
          [](const CoordinatedConfig& known) {
            const CoordinatorEndpoint& there = known.coordinator;
            RendezvousEndpoint point{there.endpoint.host, {}};
            if (there.is_here == false) {
              return point;
            }
            if (known.store) {
              point.ports.push_back({known.store->port, "--master-port"});
            }
            point.ports.push_back({there.endpoint.port,
                                   there.port_option,
                                   !there.is_here.has_value()});
            return point;
          }},
      options.rendezvous);
}

NetworkFacts probe_network(const std::string& host_name,
                           const RendezvousEndpoint& point) {
  NetworkFacts facts;
  facts.host = look_up(host_name, ddp::detail::resolve(host_name, 0));
  if (!point.host) {
    return facts;
  }
  constexpr int kAnyPort = 9;  // no packet is sent
  const auto there = ddp::detail::resolve(*point.host, kAnyPort);
  const std::vector<SocketAddress>& found = there.addresses;
  facts.endpoint = look_up(*point.host, there);
  if (std::any_of(found.begin(), found.end(), is_own)) {
    for (const RendezvousEndpoint::Port& port : point.ports) {
      facts.ports.push_back(look_at(port));
    }
  }
  return facts;
}

}  // namespace launcher
