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

/// The connections of other processes to this one, which they speak to in
/// lines.
class LineServer {
 public:
  using Id = uint64_t;  ///< counted from 1
  using Time = std::chrono::steady_clock::time_point;

  /// Called by the loop, and not for guests that were parted with.
  struct Handlers {
    /// With its newline. False: it is none of those that are expected, and
    /// the guest is parted with.
    std::function<bool(Id, const std::string& line)> on_line;
    /// `error` is errno, or 0 when the other end has closed it.
    std::function<void(Id, int error)> on_closed;
    /// Whether a guest has shown that it belongs here. Empty: all guests do.
    std::function<bool(Id)> is_known{};
  };

  /// @param listeners sockets that listen and do not block
  /// @param most connections at a time. Beyond, the oldest guest that is not
  ///   known makes room; where all are known, the new connection is closed
  /// @param longest_line in bytes, with its newline
  LineServer(EventLoop& loop,
             std::vector<Fd> listeners,
             size_t most,
             size_t longest_line,
             Handlers handlers);
  ~LineServer();
  LineServer(const LineServer&) = delete;
  LineServer& operator=(const LineServer&) = delete;

  /// Does nothing for guests who have gone.
  void send(Id id, const std::string& lines);

  /// Accepts no more connections and frees the port. Open ones stay.
  void stop_listening();

  /// Of connections that are open.
  size_t count() const { return guests_.size(); }

  /// This end of a guest's connection, without the port; empty: it has gone.
  std::string address_here(Id id) const;
  /// Its other end.
  std::string address_there(Id id) const;

  /// Sends no more than was sent, and leaves it to the other end to close: to
  /// do it here could lose what is on its way.
  void close_after_flush(Id id);

  /// To be called from time to time: lets go of who came, or was parted with,
  /// before `latest`, other than those who are known.
  void drop_idle(Time latest, const std::function<bool(Id)>& is_known);

 private:
  struct Client {
    std::unique_ptr<Connection> connection;
    Time since;  // it came, or was parted with
    bool is_parting = false;
  };

  struct Door {
    Fd listener;
    EventLoop::Token watch = 0;
  };

  void listen();
  void accept(Door& door);
  bool drop_oldest_stranger();
  void take(Id id, const std::vector<std::string>& lines);
  void lose(Id id, int error);

  EventLoop& loop_;
  std::vector<Door> doors_;
  size_t most_;
  size_t longest_line_;
  Handlers handlers_;
  Id last_id_ = 0;
  std::map<Id, Client> guests_;
};

}  // namespace launcher
