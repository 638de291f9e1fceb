#pragma once

#include <set>
#include <string>

#include "launcher/loop/event_loop.h"
#include "launcher/rendezvous/guests.h"

namespace launcher {

/// What a WayProbe connects to, at a free port of this host: says who it is to
/// those who know, and answers each further line with an empty one.
class WayServer {
 public:
  /// @param most connections at a time
  /// @throws LaunchError when it cannot listen
  WayServer(EventLoop& loop, std::string id, size_t most);

  int port() const { return port_; }

 private:
  WayServer(EventLoop& loop, std::string id, size_t most, Fd listener);
  bool take(Guests::Id guest, const std::string& line);

  std::string id_;
  int port_;
  std::set<Guests::Id> greeted_;
  Guests guests_;
};

}  // namespace launcher
