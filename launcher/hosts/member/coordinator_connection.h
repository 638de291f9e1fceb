#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/hosts/protocol/message.h"
#include "launcher/net/address.h"
#include "launcher/net/connection.h"
#include "launcher/net/line_server.h"

namespace launcher {

/// The connection of a RendezvousClient to a coordinator, in another process or
/// in this one. There is one at a time.
class CoordinatorConnection {
 public:
  struct Handlers {
    /// @param address of this end
    std::function<void(const std::string& address)> on_open;
    std::function<void(const Message&)> on_message;
    /// Called by the event loop, once for each connection, but not after
    /// disconnect().
    ///
    /// @param how "10.0.0.7: Connection reset by peer"
    /// @param is_gone  whether no coordinator listens there: another program
    ///   answers, or none
    std::function<void(const std::string& how, bool is_gone)> on_lost;
  };

  CoordinatorConnection(EventLoop& loop, Handlers handlers);

  /// Sets the addresses of the endpoint, which connect() tries in turn. Has no
  /// effect if only the order differs, or once a coordinator has answered.
  void use(std::vector<SocketAddress> addresses);
  void connect();
  /// Connects to the coordinator in this process.
  ///
  /// @param address of this host, for on_open
  void connect_to(LineServer& own, const std::string& address);
  void send(const Message& message);
  /// Closes the connection after sending all messages. The next connection is
  /// to another address, unless a coordinator has answered at this one.
  void disconnect();
  /// Whether a coordinator has answered.
  bool is_found() const { return is_found_; }

 private:
  void begin(Fd socket);
  void on_open();
  void on_lines(const std::vector<std::string>& lines);
  void on_closed(int error);
  void report_loss(const std::string& how, bool is_gone);
  void turn_to_next_address();

  EventLoop& loop_;
  std::vector<SocketAddress> addresses_;
  size_t next_address_ = 0;
  Handlers handlers_;
  std::string own_address_;  // for a coordinator in this process
  bool is_found_ = false;  // a coordinator has answered at the present address
  std::unique_ptr<Connection> connection_;
};

}  // namespace launcher
