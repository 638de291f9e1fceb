#include "launcher/doctor/probe_network.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "launcher/base/error.h"
#include "launcher/base/overloaded.h"
#include "launcher/doctor/port_holder.h"
#include "launcher/net/address.h"
#include "launcher/net/port.h"

namespace launcher {
namespace {

bool is_ip(const sockaddr* address) {
  return address != nullptr &&
         (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

SocketAddress copy_of(const sockaddr* given) {
  SocketAddress address;
  address.size =
      given->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&address.storage, given, address.size);
  return address;
}

NetworkInterface& interface_named(std::vector<NetworkInterface>& all,
                                  const std::string& name) {
  const auto known =
      std::find_if(all.begin(), all.end(), [&](const auto& each) {
        return each.name == name;
      });
  return known != all.end() ? *known : all.emplace_back(NetworkInterface{name});
}

std::vector<NetworkInterface> read_interfaces() {
  std::vector<NetworkInterface> all;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    return all;
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(
      first, &::freeifaddrs);
  for (const ifaddrs* next = first; next != nullptr; next = next->ifa_next) {
    NetworkInterface& each = interface_named(all, next->ifa_name);
    each.is_up = (next->ifa_flags & IFF_UP) != 0;
    each.is_loopback = (next->ifa_flags & IFF_LOOPBACK) != 0;
    if (is_ip(next->ifa_addr)) {
      each.addresses.push_back(numeric_host(copy_of(next->ifa_addr)));
    }
  }
  return all;
}

/// Resolves the name again, for the resolver's error message.
std::string name_error(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (error == 0) {
    ::freeaddrinfo(found);
  }
  return error == 0 ? "no address" : ::gai_strerror(error);
}

/// Looks up the reverse name of the address.
void reverse_lookup(const SocketAddress& address, HostAddress& facts) {
  std::array<char, NI_MAXHOST> name{};
  if (::getnameinfo(address.get(),
                    address.size,
                    name.data(),
                    name.size(),
                    nullptr,
                    0,
                    NI_NAMEREQD) != 0) {
    return;
  }
  facts.name = name.data();
  const auto found = addresses_of(facts.name, 0);
  facts.is_of_name =
      std::any_of(found.begin(), found.end(), [&](const auto& each) {
        return numeric_host(each) == facts.text;
      });
}

NameFacts look_up(const std::string& name,
                  const std::vector<SocketAddress>& found) {
  NameFacts facts{name, "", {}};
  for (const SocketAddress& address : found) {
    facts.addresses.push_back(
        {numeric_host(address), is_own(address), is_loopback(address)});
  }
  if (found.empty()) {
    facts.error = name_error(name);
  } else if (!is_loopback(found.front())) {
    reverse_lookup(found.front(), facts.addresses.front());
  }
  return facts;
}

PortFacts look_at(const RendezvousEndpoint::Port& port) {
  PortFacts facts{port.number, port.option, "", "", port.may_be_met};
  try {
    PortReservation{port.number};
  } catch (const LaunchError& error) {
    const std::string text = error.what();
    facts.refusal = text.substr(0, text.find(';'));
    facts.holder = port_holder(port.number);
  }
  return facts;
}

/// Returns the interface of the route to `target`: connecting a datagram socket
/// sends no packet, but gives the socket the address of its outgoing interface.
std::string interface_towards(const SocketAddress& target,
                              const std::vector<NetworkInterface>& interfaces) {
  const Fd socket(
      ::socket(target.get()->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), target.get(), target.size) != 0) {
    return "";
  }
  const std::string own = numeric_host(own_end(socket));
  for (const NetworkInterface& each : interfaces) {
    if (std::count(each.addresses.begin(), each.addresses.end(), own) > 0) {
      return each.name;
    }
  }
  return "";
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
          [](const StaticConfig& known) {
            const CoordinatorEndpoint& there = known.coordinator;
            RendezvousEndpoint point{there.endpoint.host, {}};
            if (there.is_here != false) {
              point.ports = {{known.store.port, "--master-port"},
                             {there.endpoint.port, there.port_option}};
            }
            return point;
          },
          [](const C10dConfig& known) {
            const CoordinatorEndpoint& there = known.coordinator;
            RendezvousEndpoint point{there.endpoint.host, {}};
            if (there.is_here != false) {
              point.ports = {{there.endpoint.port,
                              there.port_option,
                              !there.is_here.has_value()}};
            }
            return point;
          },
          // This host does not listen on a port: the endpoint is etcd's or
          // another host's.
          [](const EtcdConfig& known) {
            return RendezvousEndpoint{known.etcd.endpoints.front().host, {}};
          }},
      options.rendezvous);
}

NetworkFacts probe_network(const std::string& host_name,
                           const RendezvousEndpoint& point) {
  NetworkFacts facts;
  facts.interfaces = read_interfaces();
  facts.host = look_up(host_name, addresses_of(host_name, 0));
  if (!point.host) {
    return facts;
  }
  constexpr int kAnyPort = 9;  // no packet is sent
  const auto found = addresses_of(*point.host, kAnyPort);
  facts.endpoint = look_up(*point.host, found);
  if (!found.empty()) {
    facts.route_interface = interface_towards(found.front(), facts.interfaces);
  }
  if (std::any_of(found.begin(), found.end(), is_own)) {
    for (const RendezvousEndpoint::Port& port : point.ports) {
      facts.ports.push_back(look_at(port));
    }
  }
  return facts;
}

std::string address_of_interface(const NetworkFacts& network,
                                 const std::string& name) {
  for (const NetworkInterface& each : network.interfaces) {
    for (const std::string& address : each.addresses) {
      if (each.name == name && address.find('%') == std::string::npos) {
        return address;
      }
    }
  }
  return "";
}

}  // namespace launcher
