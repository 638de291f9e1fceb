#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "ddp/base/file_descriptor.h"

// Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// An IPv4 or IPv6 address with a port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
};

/// Copies an address of a system call; `address` is IPv4 or IPv6.
SocketAddress as_address(const sockaddr* address);

/// Addresses of a host in the system's order.
struct Resolved {
  int error = 0;  ///< result of getaddrinfo(), such as EAI_NONAME
  std::vector<SocketAddress> addresses{};
};

/// Resolves a host name. Blocks until the name service answers, but not for a
/// numeric address.
///
/// @param flags of getaddrinfo()
Resolved resolve(const std::string& host, int port, int flags = 0);
/// The addresses alone.
std::vector<SocketAddress> addresses_of(const std::string& host, int port);

/// Numeric addresses without a port, as socket addresses with `port`.
std::vector<SocketAddress> with_port(const std::vector<std::string>& addresses,
                                     int port);

/// Whether the host is a numeric address, which needs no name service.
bool is_address(const std::string& host);

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
/// @throws std::system_error if the descriptor is no socket
SocketAddress own_end(const FileDescriptor& socket);

/// Address of the other end of a socket. Converts an IPv4 address in IPv6 to
/// IPv4. If the connection has ended, numeric_host() of the result is empty.
SocketAddress other_end(const FileDescriptor& socket);

/// Wildcard addresses for a listener: IPv6, which also accepts IPv4, then IPv4
/// alone.
std::vector<SocketAddress> all_own_addresses(int port);

/// Address of this machine on the route to `target`. Sends nothing. Without a
/// route, numeric_host() of the result is empty.
SocketAddress local_end_towards(const SocketAddress& target);

/// Returns the numeric address of this machine on the route to `host`. Returns
/// loopback if `host` is empty, 127.0.0.1, ::1 or "localhost". Any other name
/// may resolve to loopback on its own host, such as 127.0.1.1 on Debian. In
/// this case, or without a route, returns the address on the default route, or
/// of the first interface that is up, or loopback if there is none.
std::string local_address_towards(const std::string& host);

}  // namespace ddp::detail
