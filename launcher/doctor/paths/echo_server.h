#pragma once

#include <set>
#include <string>

#include "launcher/base/event_loop.h"
#include "launcher/net/line_server.h"

namespace launcher {

/// Listens at a free port for PathProbes: answers a first line that is its id
/// with the id, and each further line with an empty one. Drops a connection
/// whose first line is another one.
class EchoServer {
 public:
  /// @param most connections at a time
  /// @throws LaunchError when it cannot listen
  EchoServer(EventLoop& loop, std::string id, size_t most);

  int port() const { return port_; }

 private:
  EchoServer(EventLoop& loop, std::string id, size_t most, Fd listener);
  bool on_line(LineServer::Id guest, const std::string& line);

  std::string id_;
  int port_;
  std::set<LineServer::Id> greeted_;
  LineServer guests_;
};

}  // namespace launcher
