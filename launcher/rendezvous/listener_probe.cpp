#include "launcher/rendezvous/listener_probe.h"

#include <utility>

namespace launcher {

ListenerProbe::ListenerProbe(EventLoop& loop,
                             const SocketAddress& address,
                             std::function<void()> on_listener) {
  constexpr size_t kLongestLine = 1;  // what is said there is not for us
  Fd socket = begin_to_connect(address);
  if (!socket) {
    return;
  }
  const auto on_open = [this, address, on_listener = std::move(on_listener)] {
    // Without a listener a socket can be connected to itself.
    if (!is_same(own_end(connection_->socket()), address)) {
      on_listener();
    }
  };
  connection_ = std::make_unique<Connection>(loop,
                                             std::move(socket),
                                             Connection::State::connecting,
                                             kLongestLine,
                                             Connection::Handlers{
                                                 .on_open = on_open,
                                                 .on_lines = [](const auto&) {},
                                                 .on_closed = [](int) {},
                                             });
}

}  // namespace launcher
