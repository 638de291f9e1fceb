#include "launcher/net/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/tcp.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

namespace launcher {
namespace {

constexpr int kBacklog = 1024;

const in6_addr& ip6_of(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
}

in_addr_t ip4_of(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr;
}

bool is_same_host(const sockaddr* left, const sockaddr* right) {
  if (left->sa_family != right->sa_family) {
    return false;
  }
  if (left->sa_family == AF_INET) {
    return ip4_of(left) == ip4_of(right);
  }
  return left->sa_family == AF_INET6 &&
         std::memcmp(&ip6_of(left), &ip6_of(right), sizeof(in6_addr)) == 0;
}

Fd make_socket(const SocketAddress& address) {
  return Fd(::socket(
      address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// Sends short messages without delay, because their senders wait for answers.
void disable_nagle(const Fd& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/// Closes a socket and keeps errno.
Fd closed_with_errno(Fd socket) {
  const int error = errno;
  socket.reset();
  errno = error;
  return socket;
}

}  // namespace

SocketAddress as_address(const addrinfo& found) {
  SocketAddress address;
  std::memcpy(&address.storage, found.ai_addr, found.ai_addrlen);
  address.size = found.ai_addrlen;
  return address;
}

std::vector<SocketAddress> addresses_of(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (::getaddrinfo(
          host.c_str(), std::to_string(port).c_str(), &hints, &first) != 0) {
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(
      first, &::freeaddrinfo);
  std::vector<SocketAddress> found;
  for (const addrinfo* next = first; next != nullptr; next = next->ai_next) {
    found.push_back(as_address(*next));
  }
  return found;
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

std::string numeric_host(const SocketAddress& address) {
  std::array<char, NI_MAXHOST> text;
  const sa_family_t family = address.storage.ss_family;
  const bool is_ip = family == AF_INET || family == AF_INET6;
  return is_ip && ::getnameinfo(address.get(),
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
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    return false;
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(
      first, &::freeifaddrs);
  for (const ifaddrs* next = first; next != nullptr; next = next->ifa_next) {
    if (next->ifa_addr != nullptr &&
        is_same_host(next->ifa_addr, address.get())) {
      return true;
    }
  }
  return false;
}

bool is_loopback(const SocketAddress& address) {
  const sockaddr* any = address.get();
  return any->sa_family == AF_INET
             ? (ntohl(ip4_of(any)) >> 24) == IN_LOOPBACKNET
             : any->sa_family == AF_INET6 &&
                   IN6_IS_ADDR_LOOPBACK(&ip6_of(any)) != 0;
}

bool is_same(const SocketAddress& left, const SocketAddress& right) {
  return is_same_host(left.get(), right.get()) &&
         port_of(left) == port_of(right);
}

SocketAddress own_end(const Fd& socket) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  check(::getsockname(socket.get(),
                      reinterpret_cast<sockaddr*>(&address.storage),
                      &address.size),
        "getsockname");
  return address;
}

SocketAddress other_end(const Fd& socket) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (::getpeername(socket.get(),
                    reinterpret_cast<sockaddr*>(&address.storage),
                    &address.size) != 0) {
    return {};
  }
  const sockaddr* any = address.get();
  if (any->sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&ip6_of(any))) {
    return address;
  }
  sockaddr_in ip4{};
  ip4.sin_family = AF_INET;
  ip4.sin_port = htons(static_cast<uint16_t>(port_of(address)));
  std::memcpy(&ip4.sin_addr, ip6_of(any).s6_addr + 12, sizeof(ip4.sin_addr));
  SocketAddress mapped;
  std::memcpy(&mapped.storage, &ip4, sizeof(ip4));
  mapped.size = sizeof(ip4);
  return mapped;
}

std::vector<SocketAddress> all_own_addresses(int port) {
  auto all = addresses_of("::", port);
  const auto without_ip6 = addresses_of("0.0.0.0", port);
  all.insert(all.end(), without_ip6.begin(), without_ip6.end());
  return all;
}

Fd listen_at(const SocketAddress& address) {
  // If two processes begin to listen at the same moment, Linux may refuse both
  // of them. After random pauses one is first.
  constexpr int kAttempts = 10;
  for (int attempt = 1;; ++attempt) {
    Fd socket = make_socket(address);
    if (!socket) {
      return socket;
    }
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(socket.get(), address.get(), address.size) != 0) {
      return closed_with_errno(std::move(socket));
    }
    if (::listen(socket.get(), kBacklog) == 0) {
      return socket;
    }
    if (errno != EADDRINUSE || attempt == kAttempts) {
      return closed_with_errno(std::move(socket));
    }
    socket = Fd();
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::random_device{}() % 2000));
  }
}

Fd accept_from(const Fd& listener) {
  Fd socket(retry_interrupted([&] {
    return ::accept4(
        listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  }));
  if (socket) {
    disable_nagle(socket);
  }
  return socket;
}

Fd begin_to_connect(const SocketAddress& address) {
  Fd socket = make_socket(address);
  if (!socket) {
    return socket;
  }
  disable_nagle(socket);
  return ::connect(socket.get(), address.get(), address.size) == 0 ||
                 errno == EINPROGRESS
             ? std::move(socket)
             : closed_with_errno(std::move(socket));
}

}  // namespace launcher
