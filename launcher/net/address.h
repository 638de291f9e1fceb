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

/// One of those that getaddrinfo() has found.
SocketAddress as_address(const addrinfo& found);

/// The addresses of a host name, in the system's order; empty when there are
/// none. May take as long as the name service does, and no time for a host that
/// is given by its address.
std::vector<SocketAddress> addresses_of(const std::string& host, int port);

/// The address without its port: "10.0.0.7", "fe80::1%eth0".
std::string numeric_host(const SocketAddress& address);

int port_of(const SocketAddress& address);

/// One of this machine's interfaces has it.
bool is_own(const SocketAddress& address);

/// It reaches nobody but this machine.
bool is_loopback(const SocketAddress& address);

/// Both have the same host and port.
bool is_same(const SocketAddress& left, const SocketAddress& right);

/// This end of a connected socket.
SocketAddress own_end(const Fd& socket);

/// The other end: of an IPv4 address in IPv6 the former; none where the
/// connection has ended, which has an empty numeric_host().
SocketAddress other_end(const Fd& socket);

/// The addresses that stand for all of this machine's, to listen at: that of
/// IPv6, which takes IPv4, too, then that of IPv4 alone.
std::vector<SocketAddress> all_own_addresses(int port);

/// A socket that listens there and does not block, or none and errno.
Fd listen_at(const SocketAddress& address);

/// The next connection to a socket that listens, which does not block; none and
/// errno when there is none.
Fd accept_from(const Fd& listener);

/// A socket that does not block, on its way to be connected; none and errno
/// when that failed at once.
Fd begin_to_connect(const SocketAddress& address);

}  // namespace launcher
