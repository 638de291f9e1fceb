#include "launcher/net/port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <utility>

#include "launcher/base/error.h"

namespace launcher {
namespace {

union Address {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

Address any_address(int family, int port) {
  Address address{};
  const in_port_t number = htons(static_cast<in_port_t>(port));
  if (family == AF_INET6) {
    address.v6.sin6_family = AF_INET6;
    address.v6.sin6_addr = in6addr_any;
    address.v6.sin6_port = number;
  } else {
    address.v4.sin_family = AF_INET;
    address.v4.sin_addr.s_addr = htonl(INADDR_ANY);
    address.v4.sin_port = number;
  }
  return address;
}

/// Binds a socket; returns an empty descriptor and errno if that fails.
Fd bind_any(int family, int port) {
  Fd bound(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!bound) {
    return bound;
  }
  const int on = 1;
  const int off = 0;
  ::setsockopt(bound.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6) {
    // One socket reserves the port of both families.
    ::setsockopt(bound.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  const Address address = any_address(family, port);
  if (::bind(bound.get(), &address.any, sizeof(address)) != 0) {
    const int error = errno;
    bound.reset();
    errno = error;
  }
  return bound;
}

int port_of(const Fd& bound) {
  Address address{};
  socklen_t size = sizeof(address);
  check(::getsockname(bound.get(), &address.any, &size), "getsockname");
  return ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port
                                                 : address.v4.sin_port);
}

[[noreturn]] void refuse(int error, int port) {
  const std::string number = std::to_string(port);
  if (error == EADDRINUSE) {
    throw LaunchError(
        kExitFailure,
        "port " + number +
            " is in use on this host; give another --master-port (with one "
            "host, leave it out: a free one is taken)");
  }
  if (error == EMFILE || error == ENFILE || error == ENOBUFS) {
    throw LaunchError(kExitFailure,
                      std::string("no port can be had for rank 0's store (") +
                          std::strerror(error) + "); check ulimit -a");
  }
  throw LaunchError(kExitFailure,
                    "port " + number + " cannot be used (" +
                        std::strerror(error) + "); give another --master-port");
}

}  // namespace

PortReservation::PortReservation(int port) : socket_(bind_any(AF_INET6, port)) {
  if (!socket_ && errno != EADDRINUSE) {
    socket_ = bind_any(AF_INET, port);  // this host has no IPv6
  }
  if (!socket_) {
    refuse(errno, port);
  }
  port_ = port_of(socket_);
}

int StorePort::reserve() {
  if (number_ == 0) {
    // The new port is reserved before the old one is released, so they differ.
    PortReservation fresh(0);
    reservation_.emplace(std::move(fresh));
  } else {
    reservation_.reset();
    reservation_.emplace(number_);
  }
  return reservation_->port();
}

}  // namespace launcher
