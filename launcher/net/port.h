#pragma once

#include <optional>

#include "launcher/base/fd.h"

namespace launcher {

/// Reserves a TCP port for a server that another process will start.
///
/// The socket is bound with SO_REUSEADDR and does not listen. Linux then lets
/// another socket with SO_REUSEADDR, such as that of a c10d store, bind the
/// port by its number and listen on it. But it does not give the port to a
/// process that asks for any free port. So the port cannot be lost in between.
class PortReservation {
 public:
  /// @param port 0 for any free one
  /// @throws LaunchError when the port is in use or may not be used
  explicit PortReservation(int port);

  int port() const { return port_; }

 private:
  Fd socket_;
  int port_ = 0;
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
