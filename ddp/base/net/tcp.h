#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {

/// A system error text for an address ("Connection refused"), or "" on success.
using Problem = std::string;

/// A listening socket. If `host` resolves to a loopback address, it listens
/// there only, so that other hosts cannot reach it; otherwise on all addresses
/// of this machine. The caller owns `fd`.
struct Listener {
  int fd = -1;
  Problem problem;
  bool port_in_use = false;
};
Listener listen_at(const std::string& host, int port);

/// A free port of 127.0.0.1, reserved while `socket` is open, for a server that
/// will listen on it. The socket is bound with SO_REUSEADDR and does not
/// listen. Linux lets another socket with SO_REUSEADDR bind the port
/// explicitly, but does not assign it to a socket that requests any free port.
struct ReservedPort {
  FileDescriptor socket;
  int port = 0;
  Problem problem;
};
ReservedPort reserve_loopback_port();

/// Returns the numeric address of this machine on the route to `host`. Returns
/// loopback if `host` is empty, 127.0.0.1, ::1 or "localhost". Any other name
/// may resolve to loopback on its own host, such as 127.0.1.1 on Debian. In
/// this case, or without a route, returns the address of the first interface
/// that is up, or loopback if there is none.
std::string local_address_towards(const std::string& host);

/// Returns the port that a socket is bound to, or 0.
int port_of(int fd);

/// Connects to a server within `timeout`, of which each address of `host` gets
/// an equal part. Returns an empty descriptor on failure.
FileDescriptor connect_to(const std::string& host,
                          int port,
                          std::chrono::milliseconds timeout);

/// Makes the kernel detect within a minute that a host is gone. Shorter limits
/// would be wrong: the restart of a switch or the migration of a virtual
/// machine may take half a minute.
void keep_alive(int fd);

/// Raises the soft limit of open files to the needs of a job with this number
/// of ranks, at most to the hard limit.
void allow_connections(int world_size);

/// Waits until `host` resolves, at most `timeout`: in a cluster a name may
/// appear shortly after the worker has started.
Problem wait_until_resolved(const std::string& host,
                            std::chrono::milliseconds timeout);

/// Waits until a server accepts connections at `host`:`port`, at most
/// `timeout`. Calls `check` after each failed attempt, at least once a second
/// for each address of `host`; an exception of `check` ends the wait.
Problem wait_until_listening(const std::string& host,
                             int port,
                             std::chrono::milliseconds timeout,
                             const std::function<void()>& check);

}  // namespace ddp::detail
