#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/hosts/member/name_lookup.h"
#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/machine/background_call.h"
#include "launcher/net/address.h"

namespace launcher {

/// The addresses of an endpoint. The addresses of a name may change: a pod that
/// starts again has another one.
class EndpointName {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// @param waited  time since look_up()
  using Found = std::function<void(const std::vector<SocketAddress>& addresses,
                                   std::chrono::milliseconds waited)>;

  EndpointName(EventLoop& loop, NameQuestion question, int port);

  /// Looks up the name; see NameLookup. Calls `on_found` before it returns if
  /// the host is a numeric address.
  void look_up(const Rendezvous::Handler& handler, const Found& on_found);

  /// Returns the addresses of a query that has ended since the last call, or
  /// none, and starts the next query when it is due. A numeric address needs no
  /// query and is returned when one would be due: it may have become this
  /// host's. Call it before each attempt to connect to a host that does not
  /// answer.
  std::vector<SocketAddress> fresh_addresses();

  void stop();

 private:
  void start_query();

  EventLoop& loop_;
  NameQuestion question_;
  int port_;
  std::optional<NameLookup> lookup_;
  Time last_query_;
  bool is_querying_ = false;
  std::optional<BackgroundCall> call_;
  std::vector<SocketAddress> fresh_;
};

}  // namespace launcher
