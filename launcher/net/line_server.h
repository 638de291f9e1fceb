#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/base/fd.h"
#include "launcher/net/connection.h"

namespace launcher {

/// Accepts connections of other processes, which send lines of text.
class LineServer {
 public:
  using Id = uint64_t;  ///< of a connection, counted from 1
  using Time = std::chrono::steady_clock::time_point;

  /// Called by the event loop, but not for connections that close_after_flush()
  /// closes.
  struct Handlers {
    /// Gets a line with its newline. Returns false if the line is invalid; the
    /// server then closes the connection.
    std::function<bool(Id, const std::string& line)> on_line;
    /// `error` is errno, or 0 when the other end has closed the connection.
    std::function<void(Id, int error)> on_closed;
    /// Whether a client has identified itself. Empty: all clients have.
    std::function<bool(Id)> is_known{};
  };

  /// @param listeners  non-blocking sockets that listen
  /// @param most  most connections at a time. Beyond it, the oldest client that
  ///   is not known is closed for a new one; if all are known, the new
  ///   connection is closed
  /// @param longest_line  in bytes, with its newline
  LineServer(EventLoop& loop,
             std::vector<Fd> listeners,
             size_t most,
             size_t longest_line,
             Handlers handlers);
  ~LineServer();
  LineServer(const LineServer&) = delete;
  LineServer& operator=(const LineServer&) = delete;

  /// Does nothing if the client has gone.
  void send(Id id, const std::string& lines);

  /// Connects this process to its own server. Returns the client's end, which
  /// does not block; empty, with errno, if too many files are open.
  Fd connect_from_here();
  /// Whether the server still has the latest connection of this process.
  bool is_connected_from_here() const { return clients_.count(own_) > 0; }

  /// Accepts no more connections and frees the port. Open connections stay.
  void stop_listening();

  /// Number of open connections.
  size_t count() const { return clients_.size(); }

  /// Sends the lines so far and ends the output. The other end closes, because
  /// closing here could lose lines on their way.
  void close_after_flush(Id id);

  /// Closes connections that were opened, or passed to close_after_flush(),
  /// before `latest`, unless the client is known (`Handlers::is_known`). Call
  /// it from time to time.
  void drop_idle(Time latest);

 private:
  struct Client {
    std::unique_ptr<Connection> connection;
    Time since;  // time of the accept, or of close_after_flush()
    bool is_closing = false;
  };

  struct Listener {
    Fd socket;
    EventLoop::Token watch = 0;
  };

  void listen();
  void accept(Listener& listener);
  Id add(Fd socket);
  bool drop_oldest_unknown();
  void on_lines(Id id, const std::vector<std::string>& lines);
  void on_closed(Id id, int error);

  EventLoop& loop_;
  std::vector<Listener> listeners_;
  size_t most_;
  size_t longest_line_;
  Handlers handlers_;
  Id last_id_ = 0;
  Id own_ = 0;  // connection of this process; 0: none
  std::map<Id, Client> clients_;
};

}  // namespace launcher
