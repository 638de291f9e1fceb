#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/hosts/member/rendezvous_client.h"
#include "launcher/hosts/protocol/message.h"
#include "launcher/net/address.h"
#include "launcher/net/connection.h"

namespace launcher {

/// A member's connection to a coordinator in another process, one at a time.
class CoordinatorConnection {
 public:
  struct Handlers {
    /// @param address of this end
    std::function<void(const std::string& address)> on_open;
    std::function<void(const Message&)> on_message;
    /// Once for each connect(), unless hang_up() comes first; also before
    /// connect() returns.
    ///
    /// @param how "10.0.0.7: Connection reset by peer"
    std::function<void(RendezvousClient::Loss, const std::string& how)> on_lost;
  };

  /// @param addresses of the endpoint, one after the other to be tried
  CoordinatorConnection(EventLoop& loop,
                        std::vector<SocketAddress> addresses,
                        Handlers handlers);

  /// Other addresses of the endpoint, from the next connect() on. The same ones
  /// in another order change nothing, and who has answered stays.
  void use(std::vector<SocketAddress> addresses);
  void connect();
  void send(const Message& message);
  /// What was sent is still sent. The next connection is to another address,
  /// unless this one has answered.
  void hang_up();
  /// A coordinator has answered.
  bool is_found() const { return is_found_; }

 private:
  void open();
  void turn_to_next_address();
  void take(const std::vector<std::string>& lines);
  void lose(int error);
  void lose(RendezvousClient::Loss loss, const std::string& how);

  EventLoop& loop_;
  std::vector<SocketAddress> addresses_;
  size_t next_address_ = 0;
  Handlers handlers_;
  bool is_found_ = false;  // the coordinator, at the present address
  std::unique_ptr<Connection> connection_;
};

}  // namespace launcher
