#pragma once

#include "launcher/fd.h"

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

}  // namespace launcher
