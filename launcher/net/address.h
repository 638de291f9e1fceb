#pragma once

#include <string>

#include "ddp/base/net/address.h"
#include "ddp/base/net/tcp.h"

namespace launcher {

using ddp::detail::accept_from;
using ddp::detail::addresses_of;
using ddp::detail::all_own_addresses;
using ddp::detail::begin_to_connect;
using ddp::detail::is_address;
using ddp::detail::is_loopback;
using ddp::detail::is_own;
using ddp::detail::is_same;
using ddp::detail::listen_at;
using ddp::detail::numeric_host;
using ddp::detail::other_end;
using ddp::detail::own_end;
using ddp::detail::port_of;
using ddp::detail::SocketAddress;
using ddp::detail::with_port;

/// Host and port of a store or a coordinator.
struct Endpoint {
  std::string host;
  int port = 0;  ///< 0: not chosen yet
};

/// "host:port", or "[fe80::1]:port".
std::string text_of(const Endpoint& endpoint);

}  // namespace launcher
