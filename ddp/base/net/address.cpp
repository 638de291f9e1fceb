#include "ddp/base/net/address.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace ddp::detail {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr int kAnyPort = 9;

bool is_ip(const sockaddr* address) {
  return address->sa_family == AF_INET || address->sa_family == AF_INET6;
}

const in6_addr& ip6_of(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr;
}

in_addr_t ip4_of(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr.s_addr;
}

bool is_same_host(const SocketAddress& left, const SocketAddress& right) {
  const int family = left.get()->sa_family;
  if (family != right.get()->sa_family) {
    return false;
  }
  return family == AF_INET
             ? ip4_of(left) == ip4_of(right)
             : family == AF_INET6 &&
                   std::memcmp(
                       &ip6_of(left), &ip6_of(right), sizeof(in6_addr)) == 0;
}

/// @param flags  that the interfaces have, such as IFF_UP
std::vector<SocketAddress> addresses_of_interfaces(unsigned int flags) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(
      first, &::freeifaddrs);
  std::vector<SocketAddress> all;
  for (const ifaddrs* next = first; next != nullptr; next = next->ifa_next) {
    if (next->ifa_addr != nullptr && is_ip(next->ifa_addr) &&
        (next->ifa_flags & flags) == flags) {
      all.push_back(as_address(next->ifa_addr));
    }
  }
  return all;
}

/// The address on the default route, else of the first interface, which may be
/// a bridge of containers. IPv4 only, because IPv6 addresses may need a scope;
/// "" if there is none.
std::string outer_address() {
  for (const SocketAddress& outside : addresses_of("203.0.113.1", kAnyPort)) {
    const std::string text = numeric_host(local_end_towards(outside));
    if (!text.empty()) {
      return text;
    }
  }
  for (const SocketAddress& address : addresses_of_interfaces(IFF_UP)) {
    if (address.get()->sa_family == AF_INET && !is_loopback(address)) {
      return numeric_host(address);
    }
  }
  return "";
}

}  // namespace

SocketAddress as_address(const sockaddr* address) {
  SocketAddress copy;
  copy.size = address->sa_family == AF_INET ? sizeof(sockaddr_in)
                                            : sizeof(sockaddr_in6);
  std::memcpy(&copy.storage, address, copy.size);
  return copy;
}

Resolved resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* first = nullptr;
  Resolved result;
  result.error =
      ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (result.error != 0) {
    return result;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(
      first, &::freeaddrinfo);
  for (const addrinfo* next = first; next != nullptr; next = next->ai_next) {
    result.addresses.push_back(as_address(next->ai_addr));
  }
  return result;
}

std::vector<SocketAddress> addresses_of(const std::string& host, int port) {
  return resolve(host, port).addresses;
}

std::vector<SocketAddress> with_port(const std::vector<std::string>& addresses,
                                     int port) {
  std::vector<SocketAddress> all;
  for (const std::string& address : addresses) {
    const auto same = addresses_of(address, port);
    all.insert(all.end(), same.begin(), same.end());
  }
  return all;
}

bool is_address(const std::string& host) {
  return resolve(host, 0, AI_NUMERICHOST).error == 0;
}

std::string numeric_host(const SocketAddress& address) {
  std::array<char, NI_MAXHOST> text;
  return is_ip(address.get()) && ::getnameinfo(address.get(),
                                               address.size,
                                               text.data(),
                                               text.size(),
                                               nullptr,
                                               0,
                                               NI_NUMERICHOST) == 0
             ? text.data()
             : "";
}

int port_of(const SocketAddress& address) {
  // Both families have the port at the same offset.
  return ntohs(reinterpret_cast<const sockaddr_in*>(address.get())->sin_port);
}

bool is_own(const SocketAddress& address) {
  // All of 127.0.0.0/8 belongs to this machine, though interfaces list
  // 127.0.0.1 only.
  if (is_loopback(address)) {
    return true;
  }
  const auto own = addresses_of_interfaces(0);
  return std::any_of(own.begin(), own.end(), [&](const SocketAddress& each) {
    return is_same_host(each, address);
  });
}

bool is_loopback(const SocketAddress& address) {
  const int family = address.get()->sa_family;
  return family == AF_INET ? (ntohl(ip4_of(address)) >> 24) == IN_LOOPBACKNET
                           : family == AF_INET6 &&
                                 IN6_IS_ADDR_LOOPBACK(&ip6_of(address)) != 0;
}

bool is_same(const SocketAddress& left, const SocketAddress& right) {
  return is_same_host(left, right) && port_of(left) == port_of(right);
}

SocketAddress own_end(const FileDescriptor& socket) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  check(::getsockname(socket.get(),
                      reinterpret_cast<sockaddr*>(&address.storage),
                      &address.size),
        "getsockname");
  return address;
}

SocketAddress other_end(const FileDescriptor& socket) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (::getpeername(socket.get(),
                    reinterpret_cast<sockaddr*>(&address.storage),
                    &address.size) != 0) {
    return {};
  }
  if (address.get()->sa_family != AF_INET6 ||
      !IN6_IS_ADDR_V4MAPPED(&ip6_of(address))) {
    return address;
  }
  sockaddr_in ip4{};
  ip4.sin_family = AF_INET;
  ip4.sin_port = htons(static_cast<uint16_t>(port_of(address)));
  std::memcpy(
      &ip4.sin_addr, ip6_of(address).s6_addr + 12, sizeof(ip4.sin_addr));
  return as_address(reinterpret_cast<const sockaddr*>(&ip4));
}

std::vector<SocketAddress> all_own_addresses(int port) {
  return with_port({"::", "0.0.0.0"}, port);
}

SocketAddress local_end_towards(const SocketAddress& target) {
  // A datagram socket makes the kernel choose the address of this end.
  const FileDescriptor socket(
      ::socket(target.get()->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return socket && ::connect(socket.get(), target.get(), target.size) == 0
             ? own_end(socket)
             : SocketAddress{};
}

std::string local_address_towards(const std::string& host) {
  if (host.empty()) {
    return kLoopback;
  }
  const bool is_this_machine =
      host == kLoopback || host == "::1" || host == "localhost";
  for (const SocketAddress& target : addresses_of(host, kAnyPort)) {
    const SocketAddress local = local_end_towards(target);
    const std::string text = numeric_host(local);
    if (!text.empty() && (is_this_machine || !is_loopback(local))) {
      return text;
    }
  }
  const std::string outer = is_this_machine ? "" : outer_address();
  return outer.empty() ? kLoopback : outer;
}

}  // namespace ddp::detail
