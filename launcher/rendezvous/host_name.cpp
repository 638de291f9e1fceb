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

void require_resolvable(const std::string& host) {
  // An address needs no name service, which may be slow.
  if (resolve(host, AI_NUMERICHOST) == 0) {
    return;
  }
  if (const int error = resolve(host, 0); error != 0) {
    throw LaunchError(kExitFailure,
                      "host name " + host + " cannot be resolved (" +
                          ::gai_strerror(error) +
                          "); check --master-addr, or give an IP address");
  }
}

}  // namespace launcher
