#pragma once

#include <string>

namespace launcher {

/// Host and port of a store or a coordinator.
struct Endpoint {
  std::string host;
  int port = 0;  ///< 0: not chosen yet
};

/// "host:port", or "[fe80::1]:port".
std::string text_of(const Endpoint& endpoint);

}  // namespace launcher
