#include "ddp/base/net/tcp.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
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
constexpr const char* kLoopback = "127.0.0.1";

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

class Socket {
 public:
  explicit Socket(int family, int type = SOCK_STREAM)
      : fd_(::socket(family, type | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

Addresses resolve(const std::string& host, int port, int type, int& error) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  error =
      ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return Addresses(error == 0 ? found : nullptr, freeaddrinfo);
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

Listener try_listen(const sockaddr* address, socklen_t size) {
  Socket socket(address->sa_family);
  const int on = 1;
  const int off = 0;
  Listener result;
  if (address->sa_family == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (socket.get() < 0 ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) !=
          0 ||
      ::bind(socket.get(), address, size) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    result.port_in_use = errno == EADDRINUSE;
    result.problem = std::strerror(errno);
    return result;
  }
  result.fd = socket.release();
  return result;
}

Listener listen_everywhere(int port) {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_any;
  v6.sin6_port = htons(static_cast<uint16_t>(port));
  auto result = try_listen(reinterpret_cast<sockaddr*>(&v6), sizeof(v6));
  if (result.fd >= 0 || result.port_in_use) {
    return result;
  }
  sockaddr_in v4{};  // for a machine without IPv6
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_ANY);
  v4.sin_port = htons(static_cast<uint16_t>(port));
  return try_listen(reinterpret_cast<sockaddr*>(&v4), sizeof(v4));
}

Problem try_connect(const Socket& socket,
                    const addrinfo& address,
                    milliseconds patience) {
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) {
    return "";
  }
  if (errno != EINPROGRESS) {
    return std::strerror(errno);
  }
  pollfd waiting{socket.get(), POLLOUT, 0};
  if (::poll(&waiting, 1, static_cast<int>(patience.count())) <= 0) {
    return std::strerror(ETIMEDOUT);
  }
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? "" : std::strerror(error);
}

/// Returns the numeric address, or "" on failure.
std::string numeric_host(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = "";
  return ::getnameinfo(
             address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0
             ? text
             : "";
}

/// Connects a datagram socket, which sends nothing but makes the kernel choose
/// the local address. Returns "" without a route, or if the address is loopback
/// and `may_be_loopback` is false.
std::string local_address_towards(const addrinfo& address,
                                  bool may_be_loopback) {
  const Socket socket(address.ai_family, SOCK_DGRAM);
  sockaddr_storage local{};
  auto* own = reinterpret_cast<sockaddr*>(&local);
  socklen_t size = sizeof(local);
  const bool found =
      socket.get() >= 0 &&
      ::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0 &&
      ::getsockname(socket.get(), own, &size) == 0 &&
      (may_be_loopback || !is_loopback(own));
  return found ? numeric_host(own, size) : "";
}

/// IPv4 only, because IPv6 addresses may need a scope; "" if there is none.
std::string first_outer_address() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) {
    return "";
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all,
                                                               freeifaddrs);
  for (const auto* it = all; it != nullptr; it = it->ifa_next) {
    if ((it->ifa_flags & IFF_UP) != 0 && it->ifa_addr != nullptr &&
        it->ifa_addr->sa_family == AF_INET && !is_loopback(it->ifa_addr)) {
      return numeric_host(it->ifa_addr, sizeof(sockaddr_in));
    }
  }
  return "";
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

Listener listen_at(const std::string& host, int port) {
  int error = 0;
  const auto addresses = resolve(host, port, SOCK_STREAM, error);
  if (addresses && is_loopback(addresses->ai_addr)) {
    return try_listen(addresses->ai_addr, addresses->ai_addrlen);
  }
  return listen_everywhere(port);
}

ReservedPort reserve_loopback_port() {
  ReservedPort result;
  result.socket =
      FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int fd = result.socket.get();
  const int on = 1;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(v4);
  auto* address = reinterpret_cast<sockaddr*>(&v4);
  if (fd < 0 ||
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(fd, address, size) != 0 ||
      ::getsockname(fd, address, &size) != 0) {
    result.problem = std::strerror(errno);
  }
  result.port = ntohs(v4.sin_port);
  return result;
}

std::string local_address_towards(const std::string& host) {
  if (host.empty()) {
    return kLoopback;
  }
  const bool is_this_machine =
      host == kLoopback || host == "::1" || host == "localhost";
  int error = 0;
  const auto addresses = resolve(host, 9, SOCK_DGRAM, error);
  for (const auto* it = addresses.get(); it != nullptr; it = it->ai_next) {
    if (auto local = local_address_towards(*it, is_this_machine);
        !local.empty()) {
      return local;
    }
  }
  const std::string outer = is_this_machine ? "" : first_outer_address();
  return outer.empty() ? kLoopback : outer;
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return 0;
  }
  return address.ss_family == AF_INET
             ? ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port)
             : ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

FileDescriptor connect_to(const std::string& host,
                          int port,
                          milliseconds timeout) {
  int error = 0;
  const auto addresses = resolve(host, port, SOCK_STREAM, error);
  int count = 0;
  for (const auto* it = addresses.get(); it != nullptr; it = it->ai_next) {
    ++count;
  }
  for (const auto* it = addresses.get(); it != nullptr; it = it->ai_next) {
    Socket socket(it->ai_family);
    if (try_connect(socket, *it, timeout / count).empty()) {
      return FileDescriptor(socket.release());
    }
  }
  return {};
}

void keep_alive(int fd) {
  const auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

void allow_connections(int world_size) {
  // A rank may have two connections to the store, one of its peer monitor, and
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
    int error = 0;
    resolve(host, 1, SOCK_STREAM, error);
    return error == 0 ? "" : ::gai_strerror(error);
  });
}

Problem wait_until_listening(const std::string& host,
                             int port,
                             milliseconds timeout,
                             const std::function<void()>& check) {
  return retry(timeout, [&](milliseconds left) -> Problem {
    int error = 0;
    const auto addresses = resolve(host, port, SOCK_STREAM, error);
    Problem problem = error == 0 ? "" : ::gai_strerror(error);
    for (auto* it = addresses.get(); it != nullptr; it = it->ai_next) {
      problem = try_connect(
          Socket(it->ai_family), *it, std::min(left, kLongestAttempt));
      if (problem.empty()) {
        return "";
      }
    }
    check();
    return problem;
  });
}

}  // namespace ddp::detail
