#pragma once

#include <functional>
#include <memory>

#include "launcher/loop/event_loop.h"
#include "launcher/net/address.h"
#include "launcher/net/connection.h"

namespace launcher {

/// Looks whether somebody listens at an address, once.
class ListenerProbe {
 public:
  /// @param on_listener somebody does. Called by the loop; may destroy the
  ///   probe.
  ListenerProbe(EventLoop& loop,
                const SocketAddress& address,
                std::function<void()> on_listener);

 private:
  std::unique_ptr<Connection> connection_;
};

}  // namespace launcher
