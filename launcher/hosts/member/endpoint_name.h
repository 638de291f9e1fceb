#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/hosts/member/name_lookup.h"
#include "launcher/hosts/member/name_question.h"
#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/machine/background_call.h"
#include "launcher/net/address.h"

namespace launcher {

/// The addresses of an endpoint. Those of a name may change: a pod that is
/// started anew has another one.
class EndpointName {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// @param waited until then
  using Found = std::function<void(const std::vector<SocketAddress>& addresses,
                                   std::chrono::milliseconds waited)>;

  EndpointName(EventLoop& loop, NameQuestion question, int port);

  /// See NameLookup; at once for a host that is given by its address.
  void look_up(const Rendezvous::Handler& handler, const Found& on_found);

  /// For a host that does not answer: to be called before each try. What the
  /// name service has said since the last call; empty: nothing. Asks it again
  /// when it is time.
  std::vector<SocketAddress> take_fresh();

  void stop();

 private:
  void ask_again();

  EventLoop& loop_;
  NameQuestion question_;
  int port_;
  std::optional<NameLookup> lookup_;
  Time asked_;
  bool is_asking_ = false;
  std::optional<BackgroundCall> call_;
  std::vector<SocketAddress> fresh_;
};

}  // namespace launcher
