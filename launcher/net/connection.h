#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/base/fd.h"

namespace launcher {

/// How a connection ended, for messages: that of errno, or for 0 that the other
/// end has closed it.
std::string end_text(int error);

/// Lines of text over a socket, both ways, without waiting. What comes and what
/// is still to be sent are bounded: beyond that the connection has failed.
class Connection {
 public:
  /// Each is called by the loop, as the last thing that a call of it does: it
  /// may destroy the connection.
  struct Handlers {
    std::function<void()> on_open;  ///< of one that was begun
    /// With their newlines.
    std::function<void(const std::vector<std::string>& lines)> on_lines;
    /// Once. `error` is errno, or 0 when the other end has closed it.
    std::function<void(int error)> on_closed;
  };

  enum class State { open, connecting };

  /// @param longest_line in bytes, with its newline
  Connection(EventLoop& loop,
             Fd socket,
             State state,
             size_t longest_line,
             Handlers handlers);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Sends what can be sent now and keeps the rest. An error is told to
  /// on_closed by the loop, later.
  void send(const std::string& lines);

  /// No more is sent after what there is; the other end can close now.
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
  State state_;
  size_t longest_line_;
  Handlers handlers_;
  EventLoop::Token watch_ = 0;
  uint32_t watched_for_ = 0;
  bool is_finishing_ = false;
  std::string unread_;  // the beginning of a line
  std::string unsent_;
};

}  // namespace launcher
