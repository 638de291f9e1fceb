#include "ddp/detail/process_group/backends.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <sstream>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace ddp::detail {
namespace {

using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

constexpr const char* kLoopback = "127.0.0.1";

/// The local address of the route to `host`: connecting a datagram socket sends
/// nothing but makes the kernel choose it.
std::string local_address_towards(const std::string& host) {
  if (host.empty()) {
    return kLoopback;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) {
    return kLoopback;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(found,
                                                                 freeaddrinfo);
  for (const addrinfo* it = found; it != nullptr; it = it->ai_next) {
    const int fd = ::socket(
        it->ai_family, it->ai_socktype | SOCK_CLOEXEC, it->ai_protocol);
    if (fd < 0) {
      continue;
    }
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    char text[NI_MAXHOST] = "";
    const bool found_local =
        ::connect(fd, it->ai_addr, it->ai_addrlen) == 0 &&
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&local),
                      size,
                      text,
                      sizeof(text),
                      nullptr,
                      0,
                      NI_NUMERICHOST) == 0;
    ::close(fd);
    if (found_local) {
      return text;
    }
  }
  return kLoopback;
}

std::vector<GlooDevice> gloo_devices(const std::string& reach) {
  std::vector<GlooDevice> devices;
  if (const char* names = std::getenv("GLOO_SOCKET_IFNAME");
      names != nullptr && *names != '\0') {
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
      devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
    return devices;
  }
  devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(
      local_address_towards(reach)));
  return devices;
}

/// Gloo writes to sockets whose other end may be gone; the signal's default
/// would end the program without a word instead of by an exception.
void ignore_broken_pipes() {
  struct sigaction current {};
  ::sigaction(SIGPIPE, nullptr, &current);
  if (current.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSpec& spec) {
  ignore_broken_pipes();
  auto options = c10d::ProcessGroupGloo::Options::create(spec.timeout);
  options->devices = gloo_devices(spec.reach);
  options->threads = static_cast<int>(2 * options->devices.size());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      spec.store, spec.rank, spec.size, options);
}

}  // namespace ddp::detail
