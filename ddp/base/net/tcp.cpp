#include "ddp/base/net/tcp.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "ddp/base/backoff.h"

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kFirstPause{5};
constexpr milliseconds kLongestPause{250};
constexpr milliseconds kLongestAttempt{500};
constexpr int kBacklog = 2048;

void set_option(const FileDescriptor& socket,
                int level,
                int option,
                int value) {
  ::setsockopt(socket.get(), level, option, &value, sizeof(value));
}

FileDescriptor make_socket(const SocketAddress& address) {
  return FileDescriptor(::socket(
      address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// Sends short messages without delay, because their senders wait for answers.
void disable_nagle(const FileDescriptor& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
}

/// Closes a socket and sets errno.
FileDescriptor closed_with(int error, FileDescriptor socket) {
  socket.reset();
  errno = error;
  return socket;
}

/// Makes a socket with the address; else empty, with errno.
FileDescriptor bind_to(const SocketAddress& address) {
  FileDescriptor socket = make_socket(address);
  if (!socket) {
    return socket;
  }
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.get()->sa_family == AF_INET6) {
    // A wildcard address is of both families.
    set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  return ::bind(socket.get(), address.get(), address.size) == 0
             ? std::move(socket)
             : closed_with(errno, std::move(socket));
}

/// Returns the result of `make` for the first address that this machine has.
template <typename Make>
FileDescriptor at_first(const std::vector<SocketAddress>& addresses,
                        const Make& make) {
  FileDescriptor socket;
  errno = EADDRNOTAVAIL;
  for (const SocketAddress& address : addresses) {
    socket = make(address);
    if (socket || errno == EADDRINUSE) {
      break;
    }
  }
  return socket;
}

ReservedPort reserve_first(const std::vector<SocketAddress>& addresses) {
  ReservedPort result;
  result.socket = at_first(addresses, bind_to);
  if (result.socket) {
    result.port = port_of(own_end(result.socket));
  } else {
    result.error = errno;
  }
  return result;
}

/// Returns an empty descriptor and errno on failure.
FileDescriptor connect_within(const SocketAddress& address,
                              milliseconds patience) {
  FileDescriptor socket = begin_to_connect(address);
  if (!socket) {
    return socket;
  }
  pollfd waiting{socket.get(), POLLOUT, 0};
  const int error = ::poll(&waiting, 1, static_cast<int>(patience.count())) > 0
                        ? connect_error(socket)
                        : ETIMEDOUT;
  return error == 0 ? std::move(socket) : closed_with(error, std::move(socket));
}

milliseconds left_until(Clock::time_point deadline) {
  return std::max(
      milliseconds(1),
      std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
}

/// Calls `attempt` until it succeeds or `timeout` is over.
template <typename Attempt>
Problem retry(milliseconds timeout, const Attempt& attempt) {
  const auto deadline = Clock::now() + timeout;
  for (Backoff backoff(kFirstPause, kLongestPause);;) {
    const Problem problem = attempt(left_until(deadline));
    const milliseconds pause = backoff.next();
    if (problem.empty() || Clock::now() + pause > deadline) {
      return problem;
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

FileDescriptor listen_at(const SocketAddress& address) {
  // If two processes begin to listen at the same moment, Linux may refuse both
  // of them. After random pauses one is first.
  constexpr int kAttempts = 10;
  for (int attempt = 1;; ++attempt) {
    FileDescriptor socket = bind_to(address);
    if (!socket || ::listen(socket.get(), kBacklog) == 0) {
      return socket;
    }
    if (errno != EADDRINUSE || attempt == kAttempts) {
      return closed_with(errno, std::move(socket));
    }
    socket.reset();
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::random_device{}() % 2000));
  }
}

FileDescriptor listen_for_ranks(const std::string& host, int port) {
  const auto addresses = addresses_of(host, port);
  return !addresses.empty() && is_loopback(addresses.front())
             ? listen_at(addresses.front())
             : at_first(all_own_addresses(port), listen_at);
}

ReservedPort reserve_port(int port) {
  return reserve_first(all_own_addresses(port));
}

ReservedPort reserve_loopback_port() {
  return reserve_first(addresses_of("127.0.0.1", 0));
}

FileDescriptor accept_from(const FileDescriptor& listener) {
  FileDescriptor socket(retry_interrupted([&] {
    return ::accept4(
        listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  }));
  if (socket) {
    disable_nagle(socket);
  }
  return socket;
}

FileDescriptor begin_to_connect(const SocketAddress& address) {
  FileDescriptor socket = make_socket(address);
  if (!socket) {
    return socket;
  }
  disable_nagle(socket);
  return ::connect(socket.get(), address.get(), address.size) == 0 ||
                 errno == EINPROGRESS
             ? std::move(socket)
             : closed_with(errno, std::move(socket));
}

int connect_error(const FileDescriptor& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0
             ? error
             : errno;
}

FileDescriptor connect_to(const std::string& host,
                          int port,
                          milliseconds timeout) {
  const auto addresses = addresses_of(host, port);
  const auto count = static_cast<int>(addresses.size());
  for (const SocketAddress& address : addresses) {
    if (auto socket = connect_within(address, timeout / count)) {
      return socket;
    }
  }
  return {};
}

void keep_alive(const FileDescriptor& socket) {
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

void allow_connections(int world_size) {
  // A rank may have two connections to the store, one of its control channel,
  // Gloo's connections to every other rank for several groups.
  constexpr rlim_t kOfProgram = 1024;
  constexpr rlim_t kOfRank = 16;
  const rlim_t wanted = kOfProgram + kOfRank * static_cast<rlim_t>(world_size);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(limit.rlim_max, wanted);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

Problem wait_until_resolved(const std::string& host, milliseconds timeout) {
  return retry(timeout, [&](milliseconds) -> Problem {
    const int error = resolve(host, 1).error;
    return error == 0 ? "" : ::gai_strerror(error);
  });
}

Problem wait_until_listening(const std::string& host,
                             int port,
                             milliseconds timeout) {
  return retry(timeout, [&](milliseconds left) -> Problem {
    const Resolved there = resolve(host, port);
    Problem problem = there.error == 0 ? "" : ::gai_strerror(there.error);
    for (const SocketAddress& address : there.addresses) {
      if (connect_within(address, std::min(left, kLongestAttempt))) {
        return "";
      }
      problem = std::strerror(errno);
    }
    return problem;
  });
}

}  // namespace ddp::detail
