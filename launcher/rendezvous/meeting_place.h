#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launcher/fd.h"
#include "launcher/loop/event_loop.h"
#include "launcher/net/address.h"
#include "launcher/process/background_call.h"
#include "launcher/rendezvous/meeting.h"

namespace launcher {

/// "host:port", or "[fe80::1]:port".
std::string text_of(const Endpoint& endpoint);

/// Finds the addresses of an endpoint's host, in a process of its own: a name
/// service that does not answer holds up no signal.
class EndpointLookup {
 public:
  /// Gets none where there are none, or where the time is over. Called by the
  /// loop, once; may destroy the lookup.
  using Handler = std::function<void(const std::vector<SocketAddress>& found)>;

  /// @throws LaunchError when no process can be made
  EndpointLookup(EventLoop& loop,
                 const Endpoint& endpoint,
                 std::chrono::milliseconds patience,
                 const Handler& handler);
  ~EndpointLookup();
  EndpointLookup(const EndpointLookup&) = delete;
  EndpointLookup& operator=(const EndpointLookup&) = delete;

 private:
  EventLoop& loop_;
  BackgroundCall call_;
};

/// A socket that listens where the hosts of a job meet, if it is for this
/// process to host them: the first one on the endpoint's host. None if it is
/// not.
///
/// @param addresses of the endpoint
/// @throws LaunchError when it should listen there and cannot
Fd listen_at_meeting(const Meeting& meeting,
                     const std::vector<SocketAddress>& addresses);

}  // namespace launcher
