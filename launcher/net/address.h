#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "launcher/base/fd.h"

namespace launcher {

/// An IPv4 or IPv6 address with a port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
};

/// Converts a result of getaddrinfo().
SocketAddress as_address(const addrinfo& found);

/// Resolves a host name; returns its addresses in the system's order. Blocks
/// until the name service answers, but not for a numeric address.
std::vector<SocketAddress> addresses_of(const std::string& host, int port);

/// Numeric addresses without a port, as socket addresses with `port`.
std::vector<SocketAddress> with_port(const std::vector<std::string>& addresses,
                                     int port);

/// Formats the address without its port: "10.0.0.7", "fe80::1%eth0". Empty
/// for an end of a socketpair.
std::string numeric_host(const SocketAddress& address);

int port_of(const SocketAddress& address);

/// Whether an interface of this machine has the address.
bool is_own(const SocketAddress& address);

/// Whether the address is loopback.
bool is_loopback(const SocketAddress& address);

/// Whether both have the same host and port.
bool is_same(const SocketAddress& left, const SocketAddress& right);

/// Address of this end of a socket.
SocketAddress own_end(const Fd& socket);

/// Address of the other end of a socket. Converts an IPv4 address in IPv6 to
/// IPv4. If the connection has ended, numeric_host() of the result is empty.
SocketAddress other_end(const Fd& socket);

/// Wildcard addresses for a listener: IPv6, which also accepts IPv4, then IPv4
/// alone.
std::vector<SocketAddress> all_own_addresses(int port);

/// Makes a non-blocking socket that listens there; else empty, with errno.
Fd listen_at(const SocketAddress& address);

/// Accepts the next connection as a non-blocking socket; else empty, with
/// errno.
Fd accept_from(const Fd& listener);

/// Starts to connect a non-blocking socket. Returns an empty descriptor and
/// errno if that fails at once.
Fd begin_to_connect(const SocketAddress& address);

}  // namespace launcher
