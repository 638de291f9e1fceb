#pragma once

#include <set>
#include <string>

#include "launcher/base/event_loop.h"
#include "launcher/net/line_server.h"

namespace launcher {

/// Listens on a free port for PathProbes. If the first line of a connection is
/// the server's id, answers with the id, and answers each further line with an
/// empty line. Drops connections with any other first line.
class EchoServer {
 public:
  /// @param most maximum number of simultaneous connections
  /// @throws LaunchError if it cannot listen
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
