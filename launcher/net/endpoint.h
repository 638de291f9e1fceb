#pragma once

#include <string>

namespace launcher {

/// Where rank 0's store listens, or where hosts meet.
struct Endpoint {
  std::string host;
  int port = 0;  ///< 0: not chosen yet
};

/// "host:port", or "[fe80::1]:port".
std::string text_of(const Endpoint& endpoint);

}  // namespace launcher
