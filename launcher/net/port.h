#pragma once

#include <optional>

#include "launcher/base/fd.h"

namespace launcher {

/// Keeps a TCP port for a server that another process will start.
///
/// The socket is bound with SO_REUSEADDR and does not listen. Linux then lets
/// another socket with SO_REUSEADDR, as every c10d store sets it, bind the port
/// by its number and listen on it, but gives the port to nobody who asks for
/// any free one. So there is no moment in which it can be lost.
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

/// A port of this host for rank 0's store, world for world.
class StorePort {
 public:
  /// @param number 0: a free one, another one each time
  explicit StorePort(int number) : number_(number) {}

  /// Gives back what was reserved before.
  ///
  /// @throws LaunchError as PortReservation
  int reserve();

 private:
  int number_;
  std::optional<PortReservation> reservation_;
};

}  // namespace launcher
