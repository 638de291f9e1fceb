#include "launcher/rendezvous/meeting_place.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>

#include "launcher/error.h"
#include "launcher/rendezvous/host_name.h"

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

std::vector<SocketAddress> all_own_addresses(int port) {
  auto all = addresses_of("::", port);
  const auto without_ip6 = addresses_of("0.0.0.0", port);
  all.insert(all.end(), without_ip6.begin(), without_ip6.end());
  return all;
}

/// Only the chosen address, where it is one that others reach.
std::vector<SocketAddress> places_to_listen(
    const Meeting& meeting, const std::vector<SocketAddress>& addresses) {
  std::vector<SocketAddress> own;
  if (!meeting.is_host.value_or(true)) {
    return own;
  }
  std::copy_if(
      addresses.begin(), addresses.end(), std::back_inserter(own), is_own);
  const std::string& host = meeting.endpoint.host;
  // A host's own name can stand for loopback there, as 127.0.1.1 on Debian. And
  // behind NAT the host that is asked to listen has the address nowhere.
  const bool must_be_found = meeting.is_host.value_or(false) || !own.empty();
  const bool is_hidden = host != "localhost" &&
                         (own.empty() || !is_address(host)) &&
                         std::all_of(own.begin(), own.end(), is_loopback);
  return must_be_found && is_hidden ? all_own_addresses(meeting.endpoint.port)
                                    : own;
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
  const bool must_host = meeting.is_host.value_or(false);
  int error = 0;
  for (const SocketAddress& address : places_to_listen(meeting, addresses)) {
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
  throw LaunchError(
      kExitFailure,
      meeting.option + ": cannot listen at " + text_of(meeting.endpoint) +
          " (" + std::strerror(error) + "); give another " +
          (meeting.store ? "--rdzv-conf meeting_port=PORT on all hosts"
                         : "endpoint"));
}

}  // namespace launcher
