#include "launcher/net/port.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "launcher/base/error.h"

namespace launcher {
namespace {

[[noreturn]] void refuse(int error, int port) {
  const std::string number = std::to_string(port);
  if (error == EADDRINUSE) {
    throw LaunchError(
        kExitFailure,
        port == 0 ? "no port of net.ipv4.ip_local_port_range is free on this "
                    "host for rank 0's store; end programs that have many "
                    "connections, or give a --master-port out of that range"
                  : "port " + number +
                        " is in use on this host; give another --master-port "
                        "(with one host, leave it out: a free one is taken)");
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

/// Takes the name of a port in this network namespace: a reserved port does not
/// keep another process from reserving it by its number, too. Returns an empty
/// descriptor if another ddprun has it.
Fd take_name_of(int port) {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A name that begins with a null byte is no file.
  const std::string name = "ddprun port " + std::to_string(port);
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (socket &&
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) !=
          0) {
    socket.reset();
  }
  return socket;
}

}  // namespace

PortReservation::PortReservation(int port)
    : reserved_(ddp::detail::reserve_port(port)) {
  if (reserved_.error != 0) {
    refuse(reserved_.error, port);
  }
  if (port != 0 && !(name_ = take_name_of(port))) {
    refuse(errno, port);
  }
}

int StorePort::reserve() {
  // The next free port is reserved before the old one is released, so they
  // differ.
  auto old = std::exchange(reservation_, std::nullopt);
  if (number_ != 0) {
    old.reset();
  }
  return reservation_.emplace(number_).port();
}

}  // namespace launcher
