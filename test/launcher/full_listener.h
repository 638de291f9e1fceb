#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "launcher/net/address.h"
#include "test/support/catch.h"

namespace launcher::test {

inline SocketAddress at_free_port(const std::string& host) {
  return addresses_of(host, 0).at(0);
}

/// A listener with a full queue: a connection attempt never ends, as to an
/// address that does not answer.
class FullListener {
 public:
  FullListener() : listener_(listen_at(at_free_port("127.0.0.1"))) {
    REQUIRE(::listen(listener_.get(), 0) == 0);
    for (int count = 0; count < 3; ++count) {
      waiting_.push_back(begin_to_connect(address()));
    }
  }

  SocketAddress address() const { return own_end(listener_); }

 private:
  Fd listener_;
  std::vector<Fd> waiting_;
};

}  // namespace launcher::test
