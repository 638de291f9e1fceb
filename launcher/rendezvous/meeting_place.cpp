#include "launcher/rendezvous/meeting_place.h"

#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <system_error>

#include "launcher/error.h"

namespace launcher {
namespace {

constexpr const char* kLookupTimer = "endpoint lookup";

/// One a line: what a process can hand over.
std::string lines_of(const std::vector<SocketAddress>& addresses) {
  std::string lines;
  for (const SocketAddress& address : addresses) {
    lines += numeric_host(address) + "\n";
  }
  return lines;
}

std::vector<SocketAddress> addresses_in(const std::string& text, int port) {
  std::vector<SocketAddress> addresses;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto same = addresses_of(line, port);
    addresses.insert(addresses.end(), same.begin(), same.end());
  }
  return addresses;
}

BackgroundCall begin_lookup(EventLoop& loop,
                            const Endpoint& endpoint,
                            const EndpointLookup::Handler& handler) try {
  return BackgroundCall(
      loop,
      [endpoint] { return lines_of(addresses_of(endpoint.host, 0)); },
      [endpoint, handler](const std::optional<std::string>& found) {
        handler(addresses_in(found.value_or(""), endpoint.port));
      });
} catch (const std::system_error& error) {
  throw LaunchError(kExitFailure,
                    std::string(error.what()) + "; check ulimit -a");
}

}  // namespace

std::string text_of(const Endpoint& endpoint) {
  const bool is_ip6 = endpoint.host.find(':') != std::string::npos;
  return (is_ip6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" +
         std::to_string(endpoint.port);
}

EndpointLookup::EndpointLookup(EventLoop& loop,
                               const Endpoint& endpoint,
                               std::chrono::milliseconds patience,
                               const Handler& handler)
    : loop_(loop), call_(begin_lookup(loop, endpoint, handler)) {
  loop_.arm_timer(kLookupTimer, patience, [handler] { handler({}); });
}

EndpointLookup::~EndpointLookup() {
  loop_.disarm_timer(kLookupTimer);
}

Fd listen_at_meeting(const Meeting& meeting,
                     const std::vector<SocketAddress>& addresses) {
  if (!meeting.is_host.value_or(true)) {
    return {};
  }
  const bool must_host = meeting.is_host.value_or(false);
  int error = 0;
  for (const SocketAddress& address : addresses) {
    if (!must_host && !is_own(address)) {
      continue;
    }
    if (Fd listener = listen_at(address)) {
      return listener;
    }
    error = errno;
    if (error == EADDRINUSE && !must_host) {
      return {};  // another ddprun of this host has it, or so it seems
    }
  }
  if (error == 0) {
    return {};
  }
  throw LaunchError(kExitFailure,
                    "--rdzv-endpoint: cannot listen at " +
                        text_of(meeting.endpoint) + " (" +
                        std::strerror(error) + "); give another endpoint");
}

}  // namespace launcher
