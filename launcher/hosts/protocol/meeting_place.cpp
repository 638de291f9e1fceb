#include "launcher/hosts/protocol/meeting_place.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "launcher/base/error.h"
#include "launcher/net/host_name.h"

namespace launcher {
namespace {

struct Places {
  std::vector<SocketAddress> addresses;
  bool is_one_enough = false;
};

/// In an order that all processes of this host have, whatever the name
/// service's is: then one of them gets the first, and no other the rest.
void sort_alike(std::vector<SocketAddress>& addresses) {
  std::sort(addresses.begin(),
            addresses.end(),
            [](const SocketAddress& left, const SocketAddress& right) {
              return numeric_host(left) < numeric_host(right);
            });
}

/// Only the chosen addresses, where one is of those that others reach.
Places places_to_listen(const Meeting& meeting,
                        const std::vector<SocketAddress>& addresses) {
  std::vector<SocketAddress> own;
  if (!meeting.is_host.value_or(true)) {
    return {};
  }
  std::copy_if(
      addresses.begin(), addresses.end(), std::back_inserter(own), is_own);
  sort_alike(own);
  const std::string& host = meeting.endpoint.host;
  // A host's own name can stand for loopback there, as 127.0.1.1 on Debian. And
  // behind NAT the host that is asked to listen has the address nowhere.
  const bool must_be_found = meeting.is_host.value_or(false) || !own.empty();
  const bool is_hidden = host != "localhost" &&
                         (own.empty() || !is_address(host)) &&
                         std::all_of(own.begin(), own.end(), is_loopback);
  return must_be_found && is_hidden
             ? Places{all_own_addresses(meeting.endpoint.port), true}
             : Places{own};
}

}  // namespace

std::vector<SocketAddress> with_port(const std::vector<std::string>& addresses,
                                     int port) {
  std::vector<SocketAddress> all;
  for (const std::string& address : addresses) {
    const auto same = addresses_of(address, port);
    all.insert(all.end(), same.begin(), same.end());
  }
  return all;
}

std::vector<Fd> listen_at_meeting(const Meeting& meeting,
                                  const std::vector<SocketAddress>& addresses) {
  const bool must_host = meeting.is_host.value_or(false);
  const Places places = places_to_listen(meeting, addresses);
  std::vector<Fd> listeners;
  int error = 0;
  for (const SocketAddress& address : places.addresses) {
    if (Fd listener = listen_at(address)) {
      listeners.push_back(std::move(listener));
      if (places.is_one_enough) {
        break;
      }
      continue;
    }
    error = errno;
    if (error == EADDRINUSE && !must_host && listeners.empty()) {
      return {};  // another ddprun of this host has it, or so it seems
    }
  }
  if (error == 0 || !listeners.empty()) {
    return listeners;
  }
  throw LaunchError(
      kExitFailure,
      meeting.option + ": cannot listen at " + text_of(meeting.endpoint) +
          " (" + std::strerror(error) + "); give another " +
          (meeting.store ? "--rdzv-conf meeting_port=PORT on all hosts"
                         : "endpoint"));
}

bool are_on_loopback(const std::vector<Fd>& listeners) {
  return std::all_of(
      listeners.begin(), listeners.end(), [](const Fd& listener) {
        return is_loopback(own_end(listener));
      });
}

size_t most_guests(const JobTerms& terms) {
  constexpr size_t kStrangers = 64;
  return 2 * static_cast<size_t>(terms.most_hosts) + kStrangers;
}

}  // namespace launcher
