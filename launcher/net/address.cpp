#include "launcher/net/address.h"

namespace launcher {

std::string text_of(const Endpoint& endpoint) {
  const bool is_ip6 = endpoint.host.find(':') != std::string::npos;
  return (is_ip6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" +
         std::to_string(endpoint.port);
}

}  // namespace launcher
