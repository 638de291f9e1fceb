#include "launcher/net/host_name.h"

#include <netdb.h>
#include <sys/socket.h>

#include "launcher/base/error.h"
#include "launcher/net/name_answer.h"

namespace launcher {

bool is_address(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const bool is_found =
      ::getaddrinfo(host.c_str(), nullptr, &hints, &found) == 0;
  if (is_found) {
    ::freeaddrinfo(found);
  }
  return is_found;
}

void require_resolvable(const std::string& host) {
  const NameAnswer answer = is_address(host) ? NameAnswer{.addresses = {host}}
                                             : ask_name_service(host);
  if (judge(host, answer, false) != NameVerdict::found) {
    throw LaunchError(kExitFailure,
                      problem_text(host, answer) +
                          "; check --master-addr, or give an IP address");
  }
}

}  // namespace launcher
