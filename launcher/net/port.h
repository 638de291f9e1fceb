#pragma once

#include <optional>

#include "ddp/base/net/tcp.h"
#include "launcher/base/fd.h"

namespace launcher {

/// Reserves a TCP port for a server that another process will start, for one
/// ddprun at a time. See ddp::detail::ReservedPort.
class PortReservation {
 public:
  /// @param port 0 for any free one
  /// @throws LaunchError when the port is in use or may not be used, or none is
  ///   free
  explicit PortReservation(int port);

  int port() const { return reserved_.port; }

 private:
  ddp::detail::ReservedPort reserved_;
  Fd name_;  // of a chosen port among all ddpruns
};

/// Reserves a port of this host for rank 0's store, for one world at a time.
class StorePort {
 public:
  /// @param number  0: a free port, another one each time
  explicit StorePort(int number) : number_(number) {}

  /// Releases the port that was reserved before.
  ///
  /// @throws LaunchError as PortReservation
  int reserve();

 private:
  int number_;
  std::optional<PortReservation> reservation_;
};

}  // namespace launcher
