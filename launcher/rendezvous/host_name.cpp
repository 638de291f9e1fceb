#include "launcher/rendezvous/host_name.h"

#include <netdb.h>
#include <sys/socket.h>

#include "launcher/error.h"

namespace launcher {
namespace {

int resolve(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error == 0) {
    ::freeaddrinfo(found);
  }
  return error;
}

}  // namespace

bool is_address(const std::string& host) {
  return resolve(host, AI_NUMERICHOST) == 0;
}

std::string resolve_error(const std::string& host) {
  const int error = is_address(host) ? 0 : resolve(host, 0);
  return error == 0 ? ""
                    : "host name " + host + " cannot be resolved (" +
                          ::gai_strerror(error) +
                          "); check --master-addr, or give an IP address";
}

void require_resolvable(const std::string& host) {
  const std::string error = resolve_error(host);
  if (!error.empty()) {
    throw LaunchError(kExitFailure, error);
  }
}

}  // namespace launcher
