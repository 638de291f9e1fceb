#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/base/fd.h"

namespace launcher {

/// Text for the end of a connection: the text of errno, or for 0 that the other
/// end has closed it.
std::string end_text(int error);

/// Sends and receives lines of text over a socket without blocking. The unread
/// and unsent data are bounded; a connection that exceeds a bound has failed.
class Connection {
 public:
  /// Called by the event loop. A handler may destroy the connection.
  struct Handlers {
    std::function<void()> on_open;  ///< for State::connecting
    /// Lines with their newlines.
    std::function<void(const std::vector<std::string>& lines)> on_lines;
    /// Called once. `error` is errno, or 0 when the other end has closed it.
    std::function<void(int error)> on_closed;
  };

  enum class State { open, connecting };

  /// @param socket  an empty one has failed with the present errno, which the
  ///   event loop reports to on_closed
  /// @param longest_line in bytes, with its newline
  Connection(EventLoop& loop,
             Fd socket,
             State state,
             size_t longest_line,
             Handlers handlers);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Sends as much as possible now and the rest later. The event loop reports
  /// an error to on_closed later.
  void send(const std::string& lines);

  /// Ends the output after the data so far, so that the other end can close.
  void finish();

  const Fd& socket() const { return socket_; }

 private:
  void on_ready();
  void open();
  void read();
  void write();
  void close(int error);
  void watch();

  EventLoop& loop_;
  Fd socket_;
  std::string failure_;  // timer that reports the failure of an empty socket
  State state_;
  size_t longest_line_;
  Handlers handlers_;
  EventLoop::Token watch_ = 0;
  uint32_t watched_for_ = 0;
  bool is_finishing_ = false;
  std::string unread_;  // beginning of a line
  std::string unsent_;
};

}  // namespace launcher
