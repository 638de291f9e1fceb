#include "launcher/hosts/coordinator_listener.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "launcher/base/error.h"

namespace launcher {
namespace {

struct ListenAddresses {
  std::vector<SocketAddress> addresses;
  bool is_one_enough = false;
};

/// Sorts addresses alike in all processes of this host, independent of the
/// order of the name service. The process that gets the first address gets all
/// of them.
void sort_by_text(std::vector<SocketAddress>& addresses) {
  std::sort(addresses.begin(),
            addresses.end(),
            [](const SocketAddress& left, const SocketAddress& right) {
              return numeric_host(left) < numeric_host(right);
            });
}

/// The endpoint's own addresses if all hosts mean the same by it, else all
/// addresses of this host: every host may know its name by another address.
ListenAddresses addresses_to_listen(
    const CoordinatorEndpoint& coordinator,
    const std::vector<SocketAddress>& addresses) {
  std::vector<SocketAddress> own;
  if (!coordinator.is_here.value_or(true)) {
    return {};
  }
  std::copy_if(
      addresses.begin(), addresses.end(), std::back_inserter(own), is_own);
  sort_by_text(own);
  const std::string& host = coordinator.endpoint.host;
  // Debian resolves a host's own name to 127.0.1.1. A host behind NAT has no
  // interface with the endpoint's address.
  const bool must_be_found =
      coordinator.is_here.value_or(false) || !own.empty();
  const bool has_one_meaning =
      host == "localhost" || (is_address(host) && !own.empty());
  return must_be_found && !has_one_meaning
             ? ListenAddresses{all_own_addresses(coordinator.endpoint.port),
                               true}
             : ListenAddresses{own};
}

}  // namespace

std::vector<Fd> listen_as_coordinator(
    const CoordinatorEndpoint& coordinator,
    const std::vector<SocketAddress>& addresses) {
  const bool must_listen = coordinator.is_here.value_or(false);
  const ListenAddresses places = addresses_to_listen(coordinator, addresses);
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
    if (error == EADDRINUSE && !must_listen && listeners.empty()) {
      return {};  // probably another ddprun of this host listens there
    }
  }
  if (error == 0 || !listeners.empty()) {
    return listeners;
  }
  throw LaunchError(kExitFailure,
                    coordinator.host_option + ": cannot listen at " +
                        text_of(coordinator.endpoint) + " (" +
                        std::strerror(error) + "); give all hosts another " +
                        coordinator.port_option);
}

namespace {

std::string places_text(const std::vector<Fd>& listeners) {
  std::string text;
  for (const Fd& listener : listeners) {
    const SocketAddress address = own_end(listener);
    const std::string host = numeric_host(address);
    const bool is_any = host == "0.0.0.0" || host == "::";
    text += (text.empty() ? "" : ", ") +
            (is_any ? "port " + std::to_string(port_of(address)) +
                          " of all addresses of this host"
                    : text_of({host, port_of(address)}));
  }
  return text;
}

}  // namespace

std::string advice_for(const CoordinatedConfig& config,
                       const std::vector<SocketAddress>& addresses,
                       const std::vector<Fd>& listeners) {
  const bool are_on_loopback =
      std::all_of(listeners.begin(), listeners.end(), [](const Fd& listener) {
        return is_loopback(own_end(listener));
      });
  std::string text = "; listens at " + places_text(listeners);
  if (are_on_loopback) {
    text += "; no other machine reaches " + config.coordinator.host_option +
            " " + text_of(config.coordinator.endpoint) +
            ", a loopback address: give all hosts this machine's name or "
            "address instead";
  } else if (config.terms.ranks_are_fixed &&
             std::none_of(addresses.begin(), addresses.end(), is_own)) {
    text += "; " + config.coordinator.endpoint.host +
            " is no address of this machine: if it is another host's, give "
            "--node-rank here";
  }
  return text + "; the number of hosts is from " +
         (config.scheduler.empty()
              ? "--nnodes or PET_NNODES"
              : config.scheduler + ": --nnodes=1 starts this one alone");
}

size_t max_connections(const JobTerms& terms) {
  constexpr size_t kStrangers = 64;
  return 2 * static_cast<size_t>(terms.most_hosts) + kStrangers;
}

}  // namespace launcher
