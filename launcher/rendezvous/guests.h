#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launcher/fd.h"
#include "launcher/loop/event_loop.h"
#include "launcher/net/connection.h"
#include "launcher/rendezvous/message.h"

namespace launcher {

/// The connections of other processes to the coordinator in this one.
class Guests {
 public:
  using Id = uint64_t;  ///< counted from 1
  using Time = std::chrono::steady_clock::time_point;

  /// Called by the loop, and not for guests that were parted with.
  struct Handlers {
    std::function<void(Id, const Message&)> on_message;
    std::function<void(Id)> on_closed;
  };

  /// @param listeners sockets that listen and do not block
  /// @param most beyond so many at a time, who comes is turned away
  Guests(EventLoop& loop,
         std::vector<Fd> listeners,
         size_t most,
         Handlers handlers);
  ~Guests();
  Guests(const Guests&) = delete;
  Guests& operator=(const Guests&) = delete;

  /// Does nothing for guests who have gone.
  void send(Id id, const Message& message);

  /// Sends no more than was sent, and leaves it to the other end to close: to
  /// do it here could lose what is on its way.
  void part_with(Id id);

  /// To be called from time to time: lets go of who came, or was parted with,
  /// before `latest`, other than those who are known.
  void remove_strangers(Time latest, const std::function<bool(Id)>& is_known);

 private:
  struct Guest {
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
  void take(Id id, const std::vector<std::string>& lines);
  void lose(Id id);

  EventLoop& loop_;
  std::vector<Door> doors_;
  size_t most_;
  Handlers handlers_;
  Id last_id_ = 0;
  std::map<Id, Guest> guests_;
};

}  // namespace launcher
