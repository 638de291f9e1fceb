#include "launcher/net/port.h"

#include <cerrno>
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

PortReservation::PortReservation(int port)
    : reserved_(ddp::detail::reserve_port(port)) {
  if (reserved_.error != 0) {
    refuse(reserved_.error, port);
  }
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
