#pragma once

#include <string>
#include <variant>

#include "launcher/hosts/protocol/message.h"
#include "launcher/net/line_server.h"

namespace launcher {

/// Makes the handler LineServer::Handlers::on_line of a coordinator.
///
/// @param address_of  returns the address of the other end of a connection
template <typename OnMessage, typename AddressOf>
auto reading_messages(OnMessage on_message, AddressOf address_of) {
  return [on_message, address_of](LineServer::Id id, const std::string& line) {
    auto message = decode(line);
    if (message) {
      if (auto* hello = std::get_if<Hello>(&*message)) {
        hello->seen_address = address_of(id);
      }
      on_message(id, *message);
    }
    return message.has_value();
  };
}

}  // namespace launcher
